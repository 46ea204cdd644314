"""What the programs of agents under test begin with: a request for a chat, over plain HTTP; and a program that is no more than that."""

from __future__ import annotations

ASK = """
import io, json, os, sys, urllib.error, urllib.request

os.environ.setdefault("SSL_CERT_FILE", os.devnull)  # urlopen reads all authorities first, for 25 ms

def ask(said, url="", **more):
    "Return the message that answers a text, or messages."
    messages = [{"role": "user", "content": said}] if isinstance(said, str) else said
    body = json.dumps({"model": "gpt-4o", "messages": messages, **more}).encode()
    url = (url or os.environ["OPENAI_BASE_URL"]) + "/chat/completions"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, {"content-type": "application/json"})) as answer:
            return json.load(answer)["choices"][0]["message"]
    except urllib.error.HTTPError as error:
        with error:  # an error that is kept would keep its socket
            text = io.BytesIO(error.read())
        raise urllib.error.HTTPError(error.url, error.code, error.msg, error.headers, text) from None
"""
ASK_EACH = f"""{ASK}
for text in sys.argv[1:]:
    try:
        print(ask(text)["content"])
    except urllib.error.HTTPError as error:
        print("HTTP", error.code)
"""
"""Asks each of its arguments, and prints the answers."""
