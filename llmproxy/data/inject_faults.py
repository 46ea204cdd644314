"""Let LLM traffic meet injected faults, inside your own mitmproxy: forwarded as ever but for them, and nothing is
recorded.

    mitmdump -s "$(llmproxy addon inject_faults)" --set llmproxy_faults=rate-limited

`llmproxy faults` lists what `llmproxy_faults` takes. It is the addon that lies beside it, in mode passthrough unless
another is set.
"""

import os
import runpy
from pathlib import Path

os.environ.setdefault("LLMPROXY_MODE", "passthrough")
addons = runpy.run_path(str(Path(__file__).resolve().with_name("record_replay.py")))["addons"]
