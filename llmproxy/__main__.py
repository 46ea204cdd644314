"""``python -m llmproxy``."""

from __future__ import annotations

import gc
import os
import sys


def run_llmproxy_cli() -> int:
    """Run the command line; an interrupt during its imports exits as quietly as a later one."""
    # nothing imported is garbage: to look for some took a tenth of `--help`, and 25 ms of the shim's start
    gc.disable()
    try:
        if sys.argv[1:2] == ["mcp"] and (code := _try_mcp_shim(sys.argv[2:])) is not None:
            return code
        from llmproxy.cli import main

        gc.freeze()
        gc.enable()
        return main()
    except KeyboardInterrupt:
        return 130


def _try_mcp_shim(words: list[str]) -> int | None:
    """Run the MCP shim if the arguments ask for it, without further imports; None: parse the command line instead."""
    from llmproxy.client.tools.mcp_shim import parse_mcp_shim_arguments, run_mcp_shim
    from llmproxy.errors import print_final_error

    if (asked := parse_mcp_shim_arguments(words)) is None:
        return None
    try:
        return run_mcp_shim(asked, os.environ)
    except Exception as error:  # noqa: BLE001 (it becomes a message)
        return print_final_error(error, debug=bool(os.environ.get("LLMPROXY_DEBUG")))


if __name__ == "__main__":
    sys.exit(run_llmproxy_cli())
