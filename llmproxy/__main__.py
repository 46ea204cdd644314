"""``python -m llmproxy``."""

from __future__ import annotations

import sys


def run() -> int:
    """Run the command line; an interrupt while it is still being imported ends as quietly as one later."""
    try:
        from llmproxy.cli import main

        return main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(run())
