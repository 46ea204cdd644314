"""Record LLM traffic once, replay it for ever, inside your own mitmproxy.

    mitmdump -s record_replay.py --set llmproxy_mode=record --set llmproxy_store=llmproxy.db

The options are those of `llmproxy start`, named llmproxy_<name>; `llmproxy settings` lists them.
"""

from llmproxy.mitm.addon import RecordReplay

addons = [RecordReplay()]
