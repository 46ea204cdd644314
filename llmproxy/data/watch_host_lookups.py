"""Report host lookups of a Python program to `llmproxy doctor`. Copied as ``sitecustomize.py`` to the front of its
PYTHONPATH.

Whoever asks for a host by its name goes past the proxy, also where no name can be resolved and so no connection is ever
seen. The environment's own sitecustomize is run as if we were not there; nothing that goes wrong here reaches the
program.
"""

import os
import sys


def _install_lookup_hook(log: str) -> None:
    seen = set()

    def record_lookup(event: str, arguments: tuple[object, ...]) -> None:
        if event != "socket.getaddrinfo":
            return
        host, port = arguments[0], arguments[1]
        host = host.decode("ascii", "replace") if isinstance(host, bytes) else str(host)
        if (host, port) not in seen:
            seen.add((host, port))
            try:
                with open(log, "a", encoding="utf-8") as file:  # noqa: PTH123 - pathlib costs each child its import
                    file.write(f"{os.getpid()}\t{host}\t{port or ''}\t{sys.executable}\n")
            except OSError:
                pass

    sys.addaudithook(record_lookup)


if os.environ.get("LLMPROXY_DOCTOR"):
    _install_lookup_hook(os.environ["LLMPROXY_DOCTOR"])


def _run_next_sitecustomize() -> None:
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - as above
    others = [each for each in sys.path if os.path.abspath(each) != here]  # noqa: PTH100 - as above
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


_run_next_sitecustomize()
