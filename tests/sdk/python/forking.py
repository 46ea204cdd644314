"""Runs of one driver by the dozen: each a process of its own, forked from one that has done what the driver does up to its last import.

    python forking.py drive_openai.py

A line in is {"out", "err", "env"}: where the run's output goes, and all of its variables. The answers are the process's number and, when
it has ended, its status, a line each. One run at a time. An SDK that read a variable as early as on import would not see the run's.
"""

from __future__ import annotations

import ast
import gc
import json
import os
import runpy
import sys
import traceback


def imports_of(script: str) -> None:
    """Do what stands in a driver up to its last import: set variables for it, import."""
    with open(script, "rb") as file:  # noqa: PTH123 - as few modules of ours as can be
        tree = ast.parse(file.read())
    kinds = (ast.Import, ast.ImportFrom, ast.Try)
    last = max(number for number, each in enumerate(tree.body) if isinstance(each, kinds))
    exec(compile(ast.Module(tree.body[: last + 1], []), script, "exec"), {"__name__": "imports"})


def be(script: str, out: str, err: str, env: dict[str, str]) -> None:
    """Be a run, and end with it."""
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [script]
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)  # a driver ends its process itself


def main(script: str) -> None:
    """Fork until nobody asks."""
    gc.disable()
    imports_of(script)
    gc.freeze()
    gc.enable()
    for line in sys.stdin:
        if (pid := os.fork()) == 0:
            be(script, **json.loads(line))
        print(pid, flush=True)
        print(os.waitpid(pid, 0)[1], flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
