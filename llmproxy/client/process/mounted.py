"""A command in a folder that has another path for it alone: the kernel's mount namespaces, without any rights of root.

``python -m llmproxy.client.process.mounted PATH COMMAND...`` shows the present folder at PATH and runs the command there. Recorder and
replayer of ``run --mount-at PATH`` so have one path, also where counts of bytes or cuts depend on its length. Linux only; some systems
forbid such namespaces, and that is said.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from llmproxy.errors import MachineError, SettingsError

_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
"""Flags of mount(2)."""
_CHECK = "--check"
_FAILED = 125
"""What env(1) and docker end with where the trouble is theirs and not the command's."""


def mounted_command(path: Path, command: Sequence[str]) -> tuple[str, ...]:
    """Return the command line that runs a command at `path`."""
    return (sys.executable, "-m", __name__, str(path), *command)


def check_mount(path: Path) -> None:
    """Try it.

    Raises:
        SettingsError: `path` cannot be a folder of that name.
        MachineError: the system does not allow it.

    """
    if not path.is_absolute() or path == Path("/"):
        raise SettingsError(f"--mount-at {path}: it must be an absolute path, and not /.")
    if path.exists() and not path.is_dir():
        raise SettingsError(f"--mount-at {path}: there is a file of that name.")
    if not hasattr(os, "unshare"):
        raise MachineError("--mount-at needs Linux: only there can a folder have another path for one command.")
    done = subprocess.run(mounted_command(path, [_CHECK]), capture_output=True, text=True, check=False)
    if done.returncode:
        raise MachineError(
            f"--mount-at {path}: {done.stderr.strip()}",
            hint="Take a path whose folder exists or can be made, on a system that allows user namespaces "
            "(in a container: --security-opt seccomp=unconfined, or run as its root with SYS_ADMIN).",
        )


def _mount(path: Path) -> None:
    """Show the present folder at `path`, for this process and its children; ends in it. Raises OSError."""
    here = Path.cwd()
    user, group = os.getuid(), os.getgid()
    path.mkdir(parents=True, exist_ok=True)
    try:
        os.unshare(os.CLONE_NEWNS)
    except PermissionError:
        os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNS)
        with contextlib.suppress(FileNotFoundError):  # kernels before 3.19
            Path("/proc/self/setgroups").write_text("deny", "ascii")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1", "ascii")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1", "ascii")
    _call_mount("none", Path("/"), _MS_REC | _MS_PRIVATE)
    _call_mount(str(here), path, _MS_BIND | _MS_REC)
    os.chdir(path)
    os.environ["PWD"] = str(path)


def _call_mount(source: str, target: Path, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), os.fsencode(target), None, ctypes.c_ulong(flags), None):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(target))


def main(words: Sequence[str]) -> int:
    """Run a command at a path; returns only where that cannot be."""
    path, *command = words
    try:
        _mount(Path(path))
    except OSError as error:
        sys.stderr.write(f"{error.strerror or error}: {error.filename or path}\n")
        return _FAILED
    if command == [_CHECK]:
        return 0
    try:
        os.execvp(command[0], command)  # noqa: S606 (the command is the user's own)
    except OSError as error:
        sys.stderr.write(f"llmproxy: {command[0]}: {error.strerror}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
