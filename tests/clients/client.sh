#!/bin/sh
# A test in POSIX shell with curl: LLMPROXY_URL=http://127.0.0.1:8080 sh client.sh
set -eu
api=$LLMPROXY_URL/_llmproxy
base=$LLMPROXY_URL/s/weather/v1

control() { # METHOD PATH [BODY]
  curl -sS -X "$1" "$api/$2" ${3:+-d "$3"}
}

ask() { # QUESTION
  curl -sS "$base/chat/completions" -H 'content-type: application/json' -H 'authorization: Bearer none' \
    -d "{\"model\": \"gpt-4o\", \"messages\": [{\"role\": \"user\", \"content\": \"$1\"}]}"
}

expect() { # TEXT IN WHAT
  case $3 in *"$1"*) ;; *) echo "expected $1 in $2, got: $3" >&2; exit 1 ;; esac
}

expect '"status": "ok"' health "$(control GET health)"
expect '"hits": 0' 'the new session' "$(control POST sessions '{"name": "weather"}')"
expect 'is open already' 'a second open' "$(control POST sessions '{"name": "weather"}')"
expect 'Rain.' 'the first answer' "$(ask 'How is the weather?')"
expect 'Sun.' 'the second answer' "$(ask 'How is the weather?')"
control POST sessions/weather/reset > /dev/null
expect 'Rain.' 'the answer after a reset' "$(ask 'How is the weather?')"
expect 'no recorded response' 'a miss' "$(ask 'Never asked before')"
report=$(control POST sessions/weather/close)
expect '"hits": 3, "misses": 1,' 'the report' "$report"
expect '"live_calls": 0' 'the report' "$report"
expect 'llmproxy_session_unknown' 'a second close' "$(control POST sessions/weather/close)"
status=$(curl -sS -o /dev/null -w '%{http_code}' "$api/sessions" -H 'Origin: http://evil.example' -d '{"name": "x"}')
expect 403 'a web page' "$status"
echo 'shell: all passed'
