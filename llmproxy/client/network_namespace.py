"""A network namespace for a command (Linux), entered between fork and exec, with the sockets that serve it.

Loopback is the only interface. Every address is routed to loopback ("AnyIP"), so that an attempt to leave is named and
fails at once: nobody listens there, and the kernel refuses. The sockets are created inside and passed out: they stay in
the namespace without any process of ours in it.

Unix sockets and some families do not belong to a network namespace. A seccomp filter reports each `bind` and `connect`
to the holder of its handle; datagrams over Unix sockets, families that leave a namespace (VM sockets, Bluetooth),
io_uring and system calls of other architectures are refused.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

CALLS = {"x86_64": (0xC000003E, 317, 41, 42, 49), "aarch64": (0xC00000B7, 277, 198, 203, 200)}
"""By architecture: AUDIT_ARCH, and the numbers of seccomp, socket, connect and bind."""
_IO_URING_SETUP, _FIRST_X32 = 425, 0x40000000
_DROPPED = (12, 19, 21)
"""CAP_NET_ADMIN, CAP_SYS_PTRACE and CAP_SYS_ADMIN, with which root could leave the namespace."""
_FAMILIES = (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_PACKET, socket.AF_ALG)
"""Address families that stay inside."""
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


def enter_new_namespace(reach: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Move this process into a namespace with listeners at these addresses (IP or ``localhost``, and port).

    Returns handles by purpose: ``packets``, ``names``, ``calls``, or the number of an address. Raises OSError if not
    permitted.
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
            *(("", _EQUAL, family, "allow", "") for family in _FAMILIES),
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
    """Return the instructions, and a `sock_fprog` that points to them."""
    places = {label: at for at, (label, *_) in enumerate(program) if label}
    code = b"".join(
        struct.pack("=HBBI", code, *(places[each] - at - 1 if each else 0 for each in (yes, no)), operand)
        for at, (_, code, operand, yes, no) in enumerate(program)
    )
    held = ctypes.create_string_buffer(code, len(code))
    return held, struct.pack("HP", len(program), ctypes.addressof(held))


def _call_libc(name: str, *arguments: object) -> int:
    result = getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)
