"""``scripts/audit-deps`` says that nothing is known only where a database was reached: not offline, not for a half answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "audit-deps"
LOCKED = "httpx==0.28.1\nwin32==1 ; sys_platform == 'win32'\n"
BAD = {"id": "PYSEC-1", "fix_versions": ["2.7.2"], "aliases": ["CVE-2014-1402"], "description": ""}


def answer(name: str, *vulns: object) -> dict[str, object]:
    return {"name": name, "version": "1", "vulns": list(vulns)}


def audited(folder: Path, canary: object, found: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the script with a `uv` that gives these answers: for the release that is known to be bad, then for what is locked."""
    for name, said in (("canary", canary), ("found", found)):
        (folder / name).write_text(said if isinstance(said, str) else json.dumps({"dependencies": said, "fixes": []}))
    (folder / "locked").write_text(LOCKED)
    uv = folder / "uv"
    uv.write_text(
        f'#!/bin/sh\ncd {folder}\nif [ "$1" = export ]; then cat locked; exit 0; fi\n'
        f'for each; do [ -f "$each" ] && grep -q jinja2 "$each" && {{ cat canary; exit 0; }}; done\ncat found; exit {code}\n'
    )
    uv.chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.run(
        [sys.executable, str(SCRIPT)], env=env, capture_output=True, text=True, check=False, timeout=60
    )


def test_nothing_known_is_said_after_the_database_named_what_is_known(tmp_path: Path) -> None:
    """Exit 0, with the number of dependencies; 1 with each vulnerability."""
    done = audited(tmp_path, [answer("jinja2", BAD)], [answer("httpx")])
    assert (done.returncode, done.stdout) == (0, "1 dependencies: no vulnerability is known to pypi\n")
    done = audited(tmp_path, [answer("jinja2", BAD)], [answer("httpx", BAD)], code=1)
    assert (done.returncode, done.stdout) == (1, "httpx 1: PYSEC-1 (CVE-2014-1402); mended in 2.7.2\n")


@pytest.mark.parametrize(("canary", "found"), [
    ([answer("jinja2")], [answer("httpx")]),
    ("", [answer("httpx")]),
    ([], [answer("httpx")]),
    ([answer("jinja2", BAD)], []),
    ([answer("jinja2", BAD)], "{"),
    ([answer("jinja2", BAD)], [answer("other")]),
    ([answer("jinja2", BAD)], [{"name": "httpx", "skip_reason": "not found"}]),
])  # fmt: skip
def test_what_was_not_looked_up_is_never_clean(tmp_path: Path, canary: object, found: object) -> None:
    """No database, no answer, half an answer, a skipped dependency: exit 3, and not a word of clean."""
    done = audited(tmp_path, canary, found)
    assert done.returncode == 3
    assert "not audited" in done.stderr
    assert "no vulnerability" not in done.stdout
