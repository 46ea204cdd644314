"""Record LLM traffic once, replay it for ever, inside your own mitmproxy.

    mitmdump -s "$(llmproxy addon)" --set llmproxy_mode=record --set llmproxy_store=llmproxy.db

The options are those of `llmproxy start`, named llmproxy_<name>; `llmproxy settings` lists them. Where mitmproxy lives
in an environment without llmproxy, the packages that lie beside this file are used, after mitmproxy's own. What cannot
work ends mitmdump: an addon that merely failed to load would let every request go on to the real provider.
"""

import os
import sys
from pathlib import Path
from typing import NoReturn

OLDEST, BEFORE = (12, 2), (13, 0)
"""The mitmproxy that this addon is made for: elsewhere, names that it uses differ."""


def end_mitmproxy_with_hint(why: str, beside: Path) -> NoReturn:
    """Print what is wrong and what to do, and end mitmproxy before it serves."""
    own = [
        each
        for up in beside.parents[:3]
        for each in (up / "bin/mitmdump", up / "Scripts/mitmdump.exe")
        if each.is_file()
    ]
    ours = get_llmproxy_requirement(beside)
    run = f"Run the mitmdump of llmproxy's own environment:  {own[0]}\nor put" if own else "Put"
    sys.stderr.write(
        f"llmproxy: {why}\n{run} llmproxy into mitmproxy's environment:  "
        f"uv tool install mitmproxy --with '{ours}'   (pipx inject mitmproxy '{ours}')\n"
    )
    sys.stderr.flush()
    os._exit(3)  # mitmproxy would only log an exception, go on without us, and pass everything


def get_llmproxy_requirement(beside: Path) -> str:
    """Return what an installer takes for llmproxy: the place that it came from, where it came from no index."""
    try:
        sys.path.append(str(beside))
        from llmproxy.advice import build_own_pip_requirement

        return build_own_pip_requirement()
    except Exception:  # noqa: BLE001 - whatever keeps it from being loaded is being told already
        return "llmproxy-replay"


def make_addon() -> object:
    from mitmproxy.version import VERSION

    beside = Path(__file__).resolve().parents[2]
    if not OLDEST <= tuple(int(part) for part in VERSION.split(".")[:2]) < BEFORE:
        end_mitmproxy_with_hint(f"this addon is made for mitmproxy 12 from 12.2, and this is {VERSION}.", beside)
    if str(beside) not in sys.path:
        sys.path.append(str(beside))
    try:
        from llmproxy.mitm.addon import MitmdumpAddon
    except ImportError as error:
        python = f"Python {sys.version_info.major}.{sys.version_info.minor} in {sys.prefix}"
        end_mitmproxy_with_hint(f"it cannot be loaded into {python}: {error}", beside)
    return MitmdumpAddon()


addons = [make_addon()]
