"""`python -m tests.provider script.json [--port N] [--tls]`: prints the URL, plays until SIGINT or SIGTERM, exits 1 after a refusal."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

from . import Provider, load


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.provider")
    parser.add_argument("script", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--tls", action="store_true")
    options = parser.parse_args()
    provider = Provider(load(json.loads(options.script.read_text("utf-8"))), tls=options.tls, port=options.port)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    provider.start()
    print(json.dumps({"url": provider.url, "ca": provider.ca_pem and str(provider.ca_pem)}), flush=True)
    signal.sigwait({signal.SIGINT, signal.SIGTERM})
    provider.stop()
    counts = {"requests": len(provider.requests), "connections": provider.connections, "refused": len(provider.refused)}
    print(json.dumps(counts), flush=True)
    for seen in provider.refused:
        print(f"{seen.method} {seen.target}\n{seen.refused}", file=sys.stderr)
    return 1 if provider.refused else 0


if __name__ == "__main__":
    sys.exit(main())
