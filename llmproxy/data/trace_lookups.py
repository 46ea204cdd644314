"""Tells `llmproxy doctor` which hosts a program and its children look up and connect to, in whatever language: ``trace_lookups.py LOG COMMAND...``.

Python and Node tell it themselves (`watch_lookups.*`). Of all others only the kernel knows: this traces their system calls on Linux, as
strace does, and reads the names out of the questions they send to a name server. A seccomp filter stops them at these few calls only, so
that all else runs at full speed. What cannot be traced (another processor, a container that forbids it) runs as if we were not there.

    the doctor's child (its exit code is the command's) -> tracer -> command -> ...

The tracer outlives the command where that leaves a server behind: a filter without its tracer would make `connect` fail.
"""

import contextlib
import ctypes
import os
import platform
import re
import shutil
import signal
import socket
import stat
import struct
import sys

# ptrace(2); seccomp(2) and the offsets of its data; prctl(2)
SEIZE, CONT, LISTEN, GET_SYSCALL_INFO = 0x4206, 7, 0x4208, 0x420E
OPTIONS = 0x02 | 0x04 | 0x08 | 0x80 | 0x100000
"""fork, vfork and clone are followed, the filter's stops are ours, and nothing runs on with a filter that nobody answers."""
EVENT_SECCOMP, EVENT_STOP = 7, 128
WALL = 0x40000000
NO_NEW_PRIVS, SET_SECCOMP, FILTER = 38, 22, 2
ALLOW, TRACE = 0x7FFF0000, 0x7FF00000
NR, ARCH, FD, COUNT = 0, 4, 16, 32
LOAD, EQUAL, GREATER, AT_LEAST, RETURN = 0x20, 0x15, 0x25, 0x35, 0x06

CALLS = {
    "x86_64": (0xC000003E, {42: "connect", 44: "sendto", 46: "sendmsg", 307: "sendmmsg", 1: "write"}),
    "aarch64": (0xC00000B7, {203: "connect", 206: "sendto", 211: "sendmsg", 269: "sendmmsg", 64: "write"}),
}
"""By processor: how seccomp calls it, and the numbers of the calls that can carry a question or an address."""
SHORTEST, LONGEST = 17, 512
"""Bytes of a question to a name server over UDP."""
ASKED_FOR = {1, 28, 65}
"""Addresses (A, AAAA) and HTTPS records."""
STOPPING = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
FORWARDED = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
WORDS_OF_A_TERMINAL = (signal.SIGINT, signal.SIGQUIT)

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
libc.prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong)


class FilterProgram(ctypes.Structure):
    """``struct sock_fprog``."""

    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def filter_of(arch: int, calls: dict[int, str]) -> bytes:
    """Return a seccomp program that stops at these calls of this processor, at `write` only where a question may be written."""
    write = next(number for number, name in calls.items() if name == "write")
    others = [number for number in calls if number != write]
    steps: list[tuple[int, int, int | str, int | str]] = [
        (LOAD, ARCH, 0, 0),
        (EQUAL, arch, 0, "allow"),
        (LOAD, NR, 0, 0),
    ]
    steps += [(EQUAL, number, "trace", 0) for number in others]
    steps += [(EQUAL, write, 0, "allow"), (LOAD, FD, 0, 0), (GREATER, 2, 0, "allow"), (LOAD, COUNT, 0, 0)]
    steps += [(AT_LEAST, SHORTEST, 0, "allow"), (GREATER, LONGEST, "allow", "trace")]
    ends = {"allow": len(steps), "trace": len(steps) + 1}

    def jump(at: int, to: int | str) -> int:
        return ends[to] - at - 1 if isinstance(to, str) else to

    lines = [struct.pack("=HBBI", code, jump(at, yes), jump(at, no), k) for at, (code, k, yes, no) in enumerate(steps)]
    return b"".join([*lines, struct.pack("=HBBI", RETURN, 0, 0, ALLOW), struct.pack("=HBBI", RETURN, 0, 0, TRACE)])


def name_in(data: bytes) -> str | None:
    """Return the host that is asked for in these bytes: a question to a name server, or to systemd's resolver."""
    if told := re.search(rb'ResolveHostname".*?"name":"([^"\\]{1,253})"', data, re.DOTALL):
        return told[1].decode("ascii", "replace")
    if len(data) < SHORTEST:
        return None
    _, flags, questions, answers, authorities, _ = struct.unpack_from(">6H", data)
    if flags & 0xF800 or (questions, answers, authorities) != (1, 0, 0):
        return None
    labels, at = [], 12
    while at < len(data) and data[at]:
        labels.append(data[at + 1 : at + 1 + data[at]])
        at += 1 + data[at]
    kind = struct.unpack_from(">HH", data, at + 1) if at + 5 <= len(data) else (0, 0)
    if (
        kind[0] not in ASKED_FOR
        or kind[1] != 1
        or not all(re.fullmatch(rb"[A-Za-z0-9_-]{1,63}", each) for each in labels)
    ):
        return None
    return b".".join(labels).decode().lower() or None


def address_in(data: bytes) -> tuple[str, int] | None:
    """Return address and port of a ``struct sockaddr``; None if it is no address of the internet."""
    if len(data) < 8:
        return None
    (family,), (port,) = struct.unpack_from("=H", data), struct.unpack_from(">H", data, 2)
    if family == socket.AF_INET:
        return socket.inet_ntop(family, data[4:8]), port
    if family == socket.AF_INET6 and len(data) >= 24:
        return socket.inet_ntop(family, data[8:24]).removeprefix("::ffff:"), port
    return None


class Tracer:
    """Follows a process and all that it starts."""

    def __init__(self, log: str, calls: dict[int, str]) -> None:
        self._log, self._calls = log, calls
        self._told: set[tuple[int, str, int]] = set()

    def follow(self, first: int, ended: int) -> None:
        """Follow `first` and its children to the end of all; writes how `first` ended to the descriptor `ended`."""
        while True:
            try:
                pid, status = os.waitpid(-1, WALL)
            except ChildProcessError:
                return
            if os.WIFSTOPPED(status):
                self._take_stop(pid, os.WSTOPSIG(status), status >> 16)
            elif pid == first:
                os.write(ended, struct.pack("=i", status))
                os.close(ended)

    def _take_stop(self, pid: int, number: int, event: int) -> None:
        if event == EVENT_SECCOMP:
            with contextlib.suppress(OSError, ValueError):  # it was killed meanwhile, or handed over what is nowhere
                self._look(pid)
        if event == EVENT_STOP and number in STOPPING:
            libc.ptrace(LISTEN, pid, None, None)
        else:
            libc.ptrace(CONT, pid, None, 0 if event else number)

    def _look(self, pid: int) -> None:
        info = ctypes.create_string_buffer(88)
        if libc.ptrace(GET_SYSCALL_INFO, pid, len(info), ctypes.addressof(info)) <= 0:
            return
        number, *arguments = struct.unpack_from("=7Q", info.raw, 24)
        name = self._calls.get(number, "")
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:  # noqa: PTH123 - as in watch_lookups.py

            def read(at: int, size: int) -> bytes:
                return os.pread(memory.fileno(), size, at)

            if name == "connect":
                if place := address_in(read(arguments[1], min(arguments[2], 28))):
                    self._tell(pid, *place)
                return
            if name in ("sendto", "write"):
                parts = [(arguments[1], arguments[2])]
            else:  # struct msghdr: name, its length, iovec, their number; struct mmsghdr is 64 bytes
                count = min(arguments[2], 8) if name == "sendmmsg" else 1
                heads = [struct.unpack("=4Q", read(arguments[1] + 64 * each, 32)) for each in range(count)]
                parts = [struct.unpack("=2Q", read(vector, 16)) for _, _, vector, many in heads if many]
            for at, size in parts:
                if found := name_in(read(at, min(size, LONGEST))):
                    self._tell(pid, found, 0)

    def _tell(self, pid: int, host: str, port: int) -> None:
        if (pid, host, port) in self._told:
            return
        self._told.add((pid, host, port))
        with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123 - light: it runs in somebody else's process
            program = file.read().split(b"\0")[0].decode(errors="replace")
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - light: it runs in somebody else's process
            group = re.search(r"Tgid:\t(\d+)", file.read())  # a thread asks for its process
        with open(self._log, "a", encoding="utf-8") as file:  # noqa: PTH123 - light: it runs in somebody else's process
            file.write(f"{group[1] if group else pid}\t{host}\t{port or ''}\t{program}\n")


def trace(log: str, command: list[str], ended: int) -> None:
    """Run the command, traced where it can be. Returns when nothing of it runs any more."""
    arch, calls = CALLS[platform.machine()]
    ready, go = os.pipe()
    first = os.fork()
    if not first:
        os.close(go)
        traced = os.read(ready, 1)
        os.close(ended)
        code = filter_of(arch, calls)
        if traced and not libc.prctl(NO_NEW_PRIVS, 1, None, 0, 0):
            program = FilterProgram(len(code) // 8, code)
            libc.prctl(SET_SECCOMP, FILTER, ctypes.addressof(program), 0, 0)
        for number in FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN or number in WORDS_OF_A_TERMINAL:
                signal.signal(number, signal.SIG_DFL)
        os.execvp(command[0], command)  # noqa: S606 - what the user typed
    os.close(ready)
    os.write(ended, struct.pack("=i", first))
    for each in range(3):  # who reads what the command writes must see its end
        os.dup2(os.open(os.devnull, os.O_RDWR), each)
    if not libc.ptrace(SEIZE, first, None, OPTIONS):
        os.write(go, b"!")
    os.close(go)
    Tracer(log, calls).follow(first, ended)


def gets_rights(program: str) -> bool:
    """Tell whether it is one like sudo, which gets no rights while it is traced."""
    found = shutil.which(program)
    return found is not None and bool(os.stat(found).st_mode & (stat.S_ISUID | stat.S_ISGID))  # noqa: PTH116 - light: it runs in somebody else's process


def in_foreground() -> bool:
    """Tell whether a terminal's own signals reach the command without us."""
    try:
        with open("/dev/tty", "rb") as tty:  # noqa: PTH123 - light: it runs in somebody else's process
            return os.tcgetpgrp(tty.fileno()) == os.getpgrp()
    except OSError:
        return False


def main(log: str, *command: str) -> None:
    """End as the command ends."""
    if platform.machine() not in CALLS or gets_rights(command[0]):
        os.execvp(command[0], command)  # noqa: S606 - what the user typed
    told, ended = os.pipe()
    caught = [number for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]
    first: list[int] = []

    def forward(number: int, _frame: object) -> None:
        if first and (number not in WORDS_OF_A_TERMINAL or not in_foreground()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(first[0], number)

    for number in caught:
        signal.signal(number, forward)
    if not os.fork():
        os.close(told)
        with contextlib.suppress(BaseException):
            trace(log, list(command), ended)
        os._exit(0)
    os.close(ended)
    first += struct.unpack("=i", os.read(told, 4))
    last = os.read(told, 4)
    if len(last) < 4:
        sys.exit("llmproxy doctor: what traced the command has ended before it, and the command with it.")
    (status,) = struct.unpack("=i", last)
    if os.WIFSIGNALED(status):
        with contextlib.suppress(OSError):  # nobody catches SIGKILL, so there is nothing to give back
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


if __name__ == "__main__":
    main(*sys.argv[1:])
