"""``llmproxy run --only``: a network in which a command reaches the proxy and nothing else, with a log of other
attempts.

A network namespace (Linux), entered between fork and exec. Loopback is its only interface, and every address is routed
there ("AnyIP"), so the kernel refuses at once. Its sockets are created inside and passed out to a thread here:
listeners for allowed addresses, packets to others (logged), and DNS, which gives each name an address of 198.18.0.0/15
(RFC 2544). Unix sockets belong to no network namespace: so a seccomp filter lets each `bind` and `connect` wait for a
decision here, and refuses datagrams over Unix sockets, families that leave a namespace (VM sockets, Bluetooth),
io_uring, and system calls of other architectures.

It is no sandbox against hostile programs: they may change an address in memory between our check and the kernel's.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import ipaddress
import json
import os
import platform
import re
import select
import socket
import struct
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from llmproxy.client.child_env import LOOPBACK
from llmproxy.errors import MachineError, SettingsError

CALLS = {"x86_64": (0xC000003E, 317, 41, 42, 49), "aarch64": (0xC00000B7, 277, 198, 203, 200)}
"""By architecture: AUDIT_ARCH, and the numbers of seccomp, socket, connect and bind."""
_IO_URING_SETUP, _FIRST_X32 = 425, 0x40000000
_DROPPED = (12, 19, 21)
"""CAP_NET_ADMIN, CAP_SYS_PTRACE and CAP_SYS_ADMIN, with which root could leave the namespace."""
_LOAD, _LOAD_BYTE, _LOAD_BYTE_X, _LOAD_INDEX, _LOAD_HEADER, _AND, _SHIFT = 0x20, 0x30, 0x50, 0x01, 0xB1, 0x54, 0x74
_EQUAL, _AT_LEAST, _ANY_OF, _RETURN = 0x15, 0x35, 0x45, 0x06
"""Instructions of classic BPF (linux/bpf_common.h)."""
_NOTIFY, _ALLOW, _FAIL = 0x7FC00000, 0x7FFF0000, 0x00050000
"""Return values of a seccomp filter (linux/seccomp.h); a refusal with its errno."""

Instruction = tuple[str, int, int, str, str]
"""Label, code, operand, and the jump labels for true and false; empty for the next instruction."""

_PACKETS: tuple[Instruction, ...] = (
    ("", _LOAD_BYTE, 0, "", ""),
    ("", _SHIFT, 4, "", ""),
    ("", _EQUAL, 6, "version 6", ""),
    ("", _LOAD_HEADER, 0, "", ""),
    ("", _LOAD_BYTE, 9, "", ""),
    ("", _EQUAL, socket.IPPROTO_TCP, "flags", "keep"),
    ("version 6", _LOAD_INDEX, 40, "", ""),
    ("", _LOAD_BYTE, 6, "", ""),
    ("", _EQUAL, socket.IPPROTO_TCP, "flags", "keep"),
    ("flags", _LOAD_BYTE_X, 13, "", ""),
    ("", _ANY_OF, 6, "keep", "drop"),  # SYN or RST
    ("keep", _RETURN, 0xFFFF, "", ""),
    ("drop", _RETURN, 0, "", ""),
)
"""Captured packets: of TCP the opening and refusal of connections, of other protocols all."""


def enter_network_namespace(reach: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Move this process into a namespace with listeners at these addresses (IP or ``localhost``, and port). Raises
    OSError. Returns handles by purpose: ``packets``, ``names``, ``calls``, or the number of an address.
    """
    _unshare_namespaces()
    sockets = [("packets", _open_packet_socket()), *(("names", each) for each in _open_dns_socket())]
    for number, (host, port) in enumerate(reach):
        sockets += [(str(number), each) for each in _listen_at(host, port)]
    handles = [*((role, each.detach()) for role, each in sockets), ("calls", _install_seccomp_filter())]
    for each in _DROPPED:
        _call_libc("prctl", 24, each, 0, 0, 0)  # PR_CAPBSET_DROP
    return handles


def _unshare_namespaces() -> None:
    user, group = os.geteuid(), os.getegid()
    try:
        os.unshare(os.CLONE_NEWNET)  # as root of the machine: users and owners of files stay what they are
        _route_all()
    except PermissionError:  # root of a container may lack CAP_NET_ADMIN only
        os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNET)
        for name, text in ("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1"):
            Path("/proc/self", name).write_text(text, "ascii")
        _route_all()


def _route_all() -> None:
    with socket.socket() as control:
        fcntl.ioctl(control, 0x8914, struct.pack("16sH22x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as routes:  # RTM_NEWROUTE of type RTN_LOCAL
        for family in (socket.AF_INET, socket.AF_INET6):
            body = struct.pack("=8BI", family, 0, 0, 0, 255, 3, 254, 2, 0)
            body += struct.pack("=HHI", 8, 4, socket.if_nametoindex("lo"))
            routes.send(struct.pack("=IHHII", 16 + len(body), 24, 0x405, 1, 0) + body)
            (error,) = struct.unpack_from("=i", routes.recv(4096), 16)
            if error and family == socket.AF_INET:  # a machine without IPv6 has nothing to route there
                raise OSError(-error, os.strerror(-error))


def _open_packet_socket() -> socket.socket:
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
    _held, program = _assemble_seccomp_filter(_PACKETS)
    packets.setsockopt(socket.SOL_SOCKET, 26, program)  # SO_ATTACH_FILTER
    packets.bind(("lo", 3))  # ETH_P_ALL
    return packets


def _open_dns_socket() -> Iterator[socket.socket]:
    """Yield a socket for DNS queries to any address, with that address, from which the answer must come."""
    for family, level, option in (socket.AF_INET, 0, 8), (socket.AF_INET6, 41, 49):  # IP_PKTINFO, IPV6_RECVPKTINFO
        with suppress(*([] if family == socket.AF_INET else [OSError])):
            each = socket.socket(family, socket.SOCK_DGRAM)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # ::53 takes what came by IPv4 too
            each.setsockopt(level, option, 1)
            each.bind(("", 53))
            yield each


def _listen_at(host: str, port: int) -> Iterator[socket.socket]:
    for address in ("127.0.0.1", "::1") if host == "localhost" else (host,):
        with suppress(*([OSError] if address == "::1" else [])):
            yield socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)


def _install_seccomp_filter() -> int:
    architecture, seccomp, socket_, connect, bind = CALLS[platform.machine()]
    stay_inside = (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_PACKET, socket.AF_ALG)
    _held, program = _assemble_seccomp_filter(
        (
            ("", _LOAD, 4, "", ""),
            ("", _EQUAL, architecture, "", "unknown"),
            ("", _LOAD, 0, "", ""),
            ("", _AT_LEAST, _FIRST_X32, "unknown", ""),
            ("", _EQUAL, connect, "notify", ""),
            ("", _EQUAL, bind, "notify", ""),
            ("", _EQUAL, _IO_URING_SETUP, "unknown", ""),
            ("", _EQUAL, socket_, "", "allow"),
            ("", _LOAD, 16, "", ""),
            *(("", _EQUAL, family, "allow", "") for family in stay_inside),
            ("", _EQUAL, socket.AF_UNIX, "", "refuse"),
            ("", _LOAD, 24, "", ""),
            ("", _AND, 15, "", ""),
            ("", _EQUAL, socket.SOCK_STREAM, "allow", ""),
            ("", _EQUAL, socket.SOCK_SEQPACKET, "allow", ""),  # all other types are datagrams
            ("refuse", _RETURN, _FAIL | errno.EAFNOSUPPORT, "", ""),
            ("allow", _RETURN, _ALLOW, "", ""),
            ("notify", _RETURN, _NOTIFY, "", ""),
            ("unknown", _RETURN, _FAIL | errno.ENOSYS, "", ""),
        )
    )
    return _call_libc("syscall", seccomp, 1, 8, ctypes.c_char_p(program))  # SET_MODE_FILTER, FLAG_NEW_LISTENER


def _assemble_seccomp_filter(program: Sequence[Instruction]) -> tuple[ctypes.Array[ctypes.c_char], bytes]:
    places = {label: at for at, (label, *_) in enumerate(program) if label}
    code = b"".join(
        struct.pack("=HBBI", code, *(places[each] - at - 1 if each else 0 for each in (yes, no)), operand)
        for at, (_, code, operand, yes, no) in enumerate(program)
    )
    held = ctypes.create_string_buffer(code, len(code))
    return held, struct.pack("HP", len(program), ctypes.addressof(held))


def _call_libc(name: str, *arguments: object) -> int:
    if (result := getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments)) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)


Address = tuple[str, int]

_FIRST_NAMED = int(ipaddress.ip_address("198.18.0.1"))
_RST, _ACK, _TCP, _UDP, _IGMP, _DNS = 4, 16, 6, 17, 2, 53
_ECHO = {1: 8, 58: 128}
"""Type of a ping by protocol; other ICMP messages come from the kernel."""
_UNCOUNTED = ("/run/nscd/", "/run/systemd/", "/run/dbus/", "/run/avahi-daemon/")
"""Services that a C library queries on its own and can do without: refused, but not logged as attempts."""
_RECEIVE, _SEND, _CONTINUE = 0xC0502100, 0xC0182101, 1
"""SECCOMP_IOCTL_NOTIF_RECV, _SEND and its flag (linux/seccomp.h)."""
_WITHOUT = "Without --only, `llmproxy doctor -- COMMAND` looks for programs that go past the proxy."
_NESTED = "It runs under a filter of system calls already: within another `run --only` leave --only out."


def parse_host_port_or_socket_path(text: str) -> Address | str:
    """Parse ``--only-allow``: host and port, or the path of a Unix socket. Raises SettingsError."""
    if "/" in text:
        return os.path.realpath(text)
    with suppress(ValueError):
        parts = urlsplit(f"//{text}")
        if parts.hostname and parts.port and "@" not in text:
            return parts.hostname, parts.port
    hint = "Write HOST:PORT (localhost:5432), or the path of a socket."
    raise SettingsError(f"--only-allow {text}: this is no address.", hint=hint)


def require_network_namespace_support() -> None:
    """Try to create such a network. Raises MachineError if this machine does not allow it, with advice."""
    if not hasattr(os, "unshare") or platform.machine() not in ("x86_64", "aarch64"):
        raise MachineError(
            f"--only needs Linux on x86-64 or ARM64; this is {platform.system()} on {platform.machine()}.",
            hint=f"Run it in a virtual machine with Linux, or in CI.\n{_WITHOUT}",
        )
    with IsolatedCommandNetwork(()) as network:
        try:
            subprocess.run([sys.executable, "-I", "-S", "-c", ""], check=False, preexec_fn=network.enter)
        except subprocess.SubprocessError as error:
            raise MachineError(
                f"--only: this machine does not let us make a network namespace: {(why := network.read_failure())}.",
                hint=_NESTED if os.strerror(errno.EBUSY) in why else _advise_how_to_enable(),
            ) from error


def _advise_how_to_enable() -> str:
    switches = {
        "kernel.apparmor_restrict_unprivileged_userns": ("1", "0"),
        "kernel.unprivileged_userns_clone": ("0", "1"),
        "user.max_user_namespaces": ("0", "15000"),
    }
    lines = []
    for name, (off, on) in switches.items():
        with suppress(OSError):
            if Path("/proc/sys", *name.split(".")).read_text("ascii").strip() == off:
                lines.append(f"Allow it to users:  sudo sysctl -w {name}={on}")
    if any(Path(each).exists() for each in ("/.dockerenv", "/run/.containerenv")):
        lines.append("In a container: start it with --cap-add SYS_ADMIN --security-opt apparmor=unconfined")
    lines = lines or ["Run it as root, or in a container with --cap-add SYS_ADMIN --security-opt apparmor=unconfined"]
    return "\n".join([*lines, _WITHOUT])


class IsolatedCommandNetwork:
    """A network for one command: call `enter` in the child before exec, then `serve` here."""

    def __init__(self, reach: Sequence[Address | str]) -> None:
        self.tries = Counter[str]()
        self._places = [each for each in reach if not isinstance(each, str)]
        self._open_paths = {each for each in reach if isinstance(each, str)}
        self._hosts: dict[str, str] = {}
        """Address inside -> the host it represents."""
        self._looked_up: set[str] = set()
        self._went: set[str] = set()
        self._programs: dict[Address, str] = {}
        self._own = _read_own_addresses()
        self._inside = [(self._map_hostname_to_address(host), port) for host, port in self._places]
        self._ours, self._childs = socket.socketpair()
        self._sockets: list[socket.socket] = []
        self._thread: threading.Thread | None = None
        self._whole = False
        self._end: Callable[[], object] = lambda: None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop serving: nothing is reachable from now on, and `tries` is complete."""
        if self._thread is not None:
            self._end()
            self._thread.join()
            if not self._whole:
                self._count_refused("(it could not be watched to its end)")
        for each in (self._ours, self._childs, *self._sockets):
            each.close()
        for host in sorted(self._looked_up - self._went - {host for host, _ in self._places}):
            self._count_refused(f"{host} (looked up)")

    def enter(self) -> None:
        """Move this process into the network, between fork and exec. Raises OSError."""
        try:
            handles = enter_network_namespace(self._inside)
        except OSError as error:
            self._childs.send(str(error).encode())
            raise
        socket.send_fds(self._childs, [json.dumps([role for role, _ in handles]).encode()], [n for _, n in handles])

    def read_failure(self) -> str:
        self._ours.settimeout(0)
        with suppress(BlockingIOError):
            return self._ours.recv(4096).decode(errors="replace")
        return "no reason is known"

    def serve(self, _pid: int) -> None:
        told, handles, *_ = socket.recv_fds(self._ours, 4096, 253)
        ready = threading.Event()
        roles = dict(zip(handles, json.loads(told), strict=True))

        def serve() -> None:
            try:
                asyncio.run(self._serve_network(roles, ready))
            finally:
                ready.set()

        self._thread = threading.Thread(target=serve, name="only", daemon=True)
        self._thread.start()
        ready.wait()

    async def _serve_network(self, roles: dict[int, str], ready: threading.Event) -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        self._end = partial(loop.call_soon_threadsafe, over.set)
        for handle, role in roles.items():
            if role == "calls":
                loop.add_reader(handle, self._on_socket_call, handle)
                continue
            self._sockets.append(each := socket.socket(fileno=handle))
            each.settimeout(0)
            if role.isdecimal():
                await asyncio.start_server(partial(_relay_bytes, self._places[int(role)]), sock=each)
            else:
                on_ready = {"packets": self._count_outgoing_packets, "names": self._on_dns_question}[role]
                loop.add_reader(each, on_ready, each)
        ready.set()
        await over.wait()
        packets = self._sockets[0]
        self._count_outgoing_packets(packets)
        os.close(next(handle for handle, role in roles.items() if role == "calls"))
        self._whole = not struct.unpack("II", packets.getsockopt(263, 6, 8))[1]  # PACKET_STATISTICS: none was lost

    def _count_refused(self, what: str, program: str = "") -> None:
        self.tries[f"{program}: {what}" if program else what] += 1

    def _count_outgoing_packets(self, packets: socket.socket) -> None:
        with suppress(BlockingIOError):
            while True:
                data, (_, _, direction, *_) = packets.recvfrom(128)
                if direction != 4:  # PACKET_OUTGOING: each comes twice
                    self._count_refused_packet(data)

    def _count_refused_packet(self, data: bytes) -> None:
        if data[0] >> 4 == 4:
            protocol, at, source, target = data[9], 4 * (data[0] & 15), data[12:16], data[16:20]
        else:
            protocol, at, source, target = data[6], 40, data[8:24], data[24:40]
        here, there = str(ipaddress.ip_address(source)), str(ipaddress.ip_address(target))
        ports = struct.unpack_from(">HH", data, at) if protocol in (_TCP, _UDP) else (0, 0)
        flags = data[at + 13] if protocol == _TCP else 0
        if flags & _RST:
            refused = data[at + 4 : at + 8] == bytes(4)  # how a kernel refuses
            if refused and self._is_own_address(here) and _is_host_port_listening(ports[0]):
                what = f"{_join_address(here, ports[0])}, a service of this machine (see --only-allow)"
                self._count_refused(what, self._programs.get((here, ports[0]), ""))
        elif not (
            self._is_own_address(there)
            or (there, ports[1]) in self._inside
            or flags & _ACK
            or protocol == _IGMP
            or (protocol in _ECHO and data[at] != _ECHO[protocol])
            or (protocol == _UDP and _DNS in ports)  # the name that it asks for is counted
        ):
            host = self._hosts.get(there, there)
            self._went.add(host)
            kind = {_TCP: "", _UDP: " (UDP)"}.get(protocol, f" (protocol {protocol})")
            self._count_refused(f"{_join_address(host, ports[1])}{kind}", self._programs.get((there, ports[1]), ""))

    def _is_own_address(self, address: str) -> bool:
        parsed = ipaddress.ip_address(address)
        return parsed.is_loopback or parsed.is_unspecified or address in self._own

    def _on_dns_question(self, names: socket.socket) -> None:
        with suppress(OSError, IndexError, struct.error):  # it left, or this is no question
            question, where, _, whom = names.recvmsg(4096, 128)
            names.sendmsg([self._build_dns_answer(question)], where, 0, whom)

    def _build_dns_answer(self, question: bytes) -> bytes:
        """Answer a DNS query (RFC 1035): an IPv4 address for each name, and no other records."""
        labels, at = [], 12
        while length := question[at]:
            labels.append(question[at + 1 : at + 1 + length])
            at += length + 1
        host = b".".join(labels).decode("ascii", "replace").lower()
        machine = socket.gethostname().lower()
        found, address = question[at + 1 : at + 3] == b"\0\1", "127.0.0.1"
        if host.endswith(".arpa"):
            found = False
        elif host not in ("localhost", machine, machine.partition(".")[0]) and not host.endswith(".localhost"):
            address = self._map_hostname_to_address(host)
            self._looked_up.add(host)
        head = question[:2] + struct.pack(">5H", 0x8580, 1, found, 0, 0)
        record = struct.pack(">HHHIH", 0xC00C, 1, 1, 0, 4) + ipaddress.ip_address(address).packed
        return head + question[12 : at + 5] + (record if found else b"")

    def _map_hostname_to_address(self, host: str) -> str:
        if host in LOOPBACK:
            return "localhost"
        with suppress(ValueError):
            return str(ipaddress.ip_address(host))
        known = next((address for address, name in self._hosts.items() if name == host), "")
        address = known or str(ipaddress.ip_address(_FIRST_NAMED + len(self._hosts)))
        self._hosts[address] = host
        return address

    def _on_socket_call(self, calls: int) -> None:
        poll, request = select.poll(), bytearray(80)
        poll.register(calls, select.POLLIN)
        if not any(event & select.POLLIN for _, event in poll.poll(0)):  # all have ended: to receive would wait
            asyncio.get_running_loop().remove_reader(calls)
            return
        try:
            fcntl.ioctl(calls, _RECEIVE, request)
        except OSError:  # who asked was killed
            return
        number, pid, _, call, _, _, _, pointer, length = struct.unpack_from("=QIIiIQ3Q", request)
        refused = True  # unless its address can be read
        with suppress(OSError, ValueError):
            with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
                raw = os.pread(memory.fileno(), min(length, 128), pointer)
            refused = self._is_unix_connect_refused(pid, raw, binds=call == CALLS[platform.machine()][4])
        answer = struct.pack("=QqiI", number, 0, -errno.ECONNREFUSED if refused else 0, 0 if refused else _CONTINUE)
        with suppress(OSError):
            fcntl.ioctl(calls, _SEND, answer)

    def _is_unix_connect_refused(self, pid: int, raw: bytes, *, binds: bool) -> bool:
        """Return whether a process may not connect to a socket's address; notes process and address."""
        family = int.from_bytes(raw[:2], sys.byteorder)
        if family in (socket.AF_INET, socket.AF_INET6) and not binds:
            address = ipaddress.ip_address(raw[4:8] if family == socket.AF_INET else raw[8:24])
            place = str(getattr(address, "ipv4_mapped", None) or address), int.from_bytes(raw[2:4])
            self._programs[place] = _read_process_name(pid)
        if family != socket.AF_UNIX or len(raw) < 3:
            return False
        path = raw[2:].partition(b"\0")[0].decode("utf-8", "surrogateescape")
        if not path:  # an abstract one belongs to the namespace, and nobody outside is found
            name = "@" + raw[3:].decode("utf-8", "replace")
            if not binds and f" {name}\n" in Path("/proc/net/unix").read_text("utf-8", "replace"):
                self._count_refused(name, _read_process_name(pid))
            return False
        path = path.replace("/proc/self/", f"/proc/{pid}/", 1)
        real = os.path.realpath(f"/proc/{pid}/{'root' if path.startswith('/') else 'cwd'}/{path}")
        there = os.path.lexists(real)
        if binds:
            if not there:  # else it fails, and the socket is not its own
                self._open_paths.add(real)
            return False
        if not there or real in self._open_paths:
            return False
        if not real.startswith(_UNCOUNTED):
            self._count_refused(real, _read_process_name(pid))
        return True


async def _relay_bytes(place: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        back, forth = await asyncio.open_connection(*place)
    except OSError:
        writer.transport.abort()
        return
    await asyncio.gather(_copy_stream(reader, forth), _copy_stream(back, writer))
    forth.close()
    writer.close()


async def _copy_stream(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()
        sink.write_eof()
    except OSError:
        sink.transport.abort()


def _join_address(host: str, port: int) -> str:
    return f"{f'[{host}]' if ':' in host else host}:{port}" if port else host


def _read_process_name(pid: int) -> str:
    with suppress(OSError):
        program = Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0]
        return program.rpartition(b"/")[2].decode(errors="replace")
    return ""


def _read_own_addresses() -> set[str]:
    """Return this machine's addresses, which mean the command's own network inside."""
    found = re.findall(r"\|-- ([\d.]+)\n\s+/32 host LOCAL", Path("/proc/net/fib_trie").read_text("ascii"))
    lines = [line for path in Path("/proc/net").glob("if_inet6") for line in path.read_text("ascii").splitlines()]
    return {*found, *(str(ipaddress.ip_address(bytes.fromhex(line[:32]))) for line in lines)}


def _is_host_port_listening(port: int) -> bool:
    tables = "".join(path.read_text("ascii") for path in Path("/proc/net").glob("tcp*"))
    return re.search(rf":{port:04X} \w+:0000 0A ", tables) is not None
