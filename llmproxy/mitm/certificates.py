"""The certificate authority: created once, readable only by us, and checked before each start.

The holder of its key can read the traffic of all clients that trust it, so the folder has mode 0700 and the key 0600.

    no files                          a new authority
    certificate without key           a new authority, and a note: clients must trust the new one
    expired, or not valid yet         a new authority, and a note; the old one is kept beside it
    no certificate, or another's      written again from the key's file
    not a key and its certificate     MachineError: it may be the user's own, so it is not overwritten

Of several proxies that start at once, the first to link the key's file has created the authority.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import certifi
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509 import BasicConstraints, Certificate, ExtensionNotFound, load_pem_x509_certificate
from mitmproxy import ctx
from mitmproxy.addonmanager import Loader
from mitmproxy.certs import DEFAULT_DHPARAM, CertStore
from mitmproxy.tls import ClientHelloData, TlsData

from llmproxy.errors import MachineError

if TYPE_CHECKING:
    from mitmproxy.addons.tlsconfig import TlsConfig


NAME = "mitmproxy"
"""Prefix of these files' names in mitmproxy."""
KEY = f"{NAME}-ca.pem"
CERTIFICATE = f"{NAME}-ca-cert.pem"
PARAMETERS = f"{NAME}-dhparam.pem"
BUNDLE = f"{NAME}-ca-bundle.pem"
KEY_SIZE = 2048


@dataclass(frozen=True, slots=True)
class AuthorityFiles:
    folder: Path
    notes: tuple[str, ...] = ()

    @property
    def ca_certificate_path(self) -> Path:
        """The certificate alone (PEM), for variables that *add* trusted ones, NODE_EXTRA_CA_CERTS."""
        return self.folder / CERTIFICATE

    @property
    def ca_bundle(self) -> Path:
        """All authorities of certifi and ours (PEM), for variables that *replace* trusted ones, SSL_CERT_FILE."""
        return self.folder / BUNDLE


def confdir() -> Path:
    return Path(os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")) / "llmproxy"


def prepare_authority(folder: Path, now: datetime | None = None) -> AuthorityFiles:
    """Check that a folder holds a valid authority with safe permissions. Raises MachineError: unusable, damaged."""
    notes: list[str] = []
    anew = f"trust it anew where the old one was ({folder / CERTIFICATE})"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _restrict_mode(folder, 0o700, notes)
        key = folder / KEY
        if not key.exists():
            if (folder / CERTIFICATE).exists():
                notes.append(f"{key} was gone, so there is a new certificate authority: {anew}")
            _make_authority(folder)
        certificate = _read_checked_certificate(key)
        if why := _explain_certificate_invalidity(certificate, now or datetime.now(UTC)):
            key.replace(folder / f"{KEY}.old")
            _make_authority(folder)
            certificate = _read_checked_certificate(key)
            notes.append(f"the certificate authority {why}, so there is a new one: {anew}")
        _restrict_mode(key, 0o600, notes)
        ours = certificate.public_bytes(Encoding.PEM)
        _write_if_changed(folder / CERTIFICATE, ours)
        _write_if_changed(folder / PARAMETERS, DEFAULT_DHPARAM)  # mitmproxy would write it, but not at once
        _write_if_changed(folder / BUNDLE, Path(certifi.where()).read_bytes().rstrip() + b"\n\n# llmproxy\n" + ours)
    except OSError as error:
        msg = f"cannot use {error.filename or folder} for the certificate authority: {error.strerror or error}"
        raise MachineError(msg, hint="Let XDG_DATA_HOME name a folder that can be written.") from error
    return AuthorityFiles(folder, tuple(notes))


def prepare_or_use_temporary(folder: Path) -> AuthorityFiles:
    """Prepare the authority of a proxy for base URLs; if that fails, a temporary one, and a note with the reason."""
    try:
        return prepare_authority(folder)
    except MachineError as error:
        folder = Path(tempfile.mkdtemp(prefix="llmproxy-ca-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        note = f"https at the port has a certificate authority for this run alone: {error.message}"
        return AuthorityFiles(prepare_authority(folder).folder, (note,))


def _make_authority(folder: Path) -> None:
    """Let mitmproxy create an authority, unless another process is faster."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".making-") as made:
        CertStore.create_store(Path(made), NAME, KEY_SIZE, organization="llmproxy", cn="llmproxy")
        part = Path(made) / KEY
        part.chmod(0o600)
        try:
            os.link(part, folder / KEY)
        except FileExistsError:
            return
        except OSError:  # a file system without links
            part.replace(folder / KEY)


def _read_checked_certificate(path: Path) -> Certificate:
    data = path.read_bytes()
    try:
        # mitmproxy checks the key when it is used: here the check (of its primes) would take longer than all else.
        key = load_pem_private_key(data, None, unsafe_skip_rsa_key_validation=True)
        certificate = load_pem_x509_certificate(data)
        if not certificate.extensions.get_extension_for_class(BasicConstraints).value.ca:
            raise ValueError("its certificate is not that of an authority")  # noqa: TRY301 - translated with the rest
    except (ValueError, TypeError, ExtensionNotFound) as error:
        raise _damage_error(path, str(error).partition("\n")[0]) from error
    if key.public_key() != certificate.public_key():
        raise _damage_error(path, "its key and its certificate do not belong together")
    return certificate


def _damage_error(path: Path, why: str) -> MachineError:
    hint = f"Remove it and start again; a new one is made then, which has to be trusted anew: rm '{path}'"
    return MachineError(f"the certificate authority {path} is damaged: {why[:200]}", hint=hint)


def _explain_certificate_invalidity(certificate: Certificate, now: datetime) -> str:
    if certificate.not_valid_after_utc <= now:
        return f"expired on {certificate.not_valid_after_utc:%Y-%m-%d}"
    if certificate.not_valid_before_utc > now:
        return f"is valid only from {certificate.not_valid_before_utc:%Y-%m-%d}"
    return ""


def _write_if_changed(path: Path, data: bytes) -> None:
    """Write a file atomically, if it is missing or differs."""
    if path.is_file() and path.read_bytes() == data:
        return
    descriptor, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    Path(part).chmod(0o644)
    Path(part).replace(path)


def _restrict_mode(path: Path, mode: int, notes: list[str]) -> None:
    if os.name == "posix" and path.stat().st_mode & 0o777 & ~mode:
        path.chmod(mode)
        notes.append(f"{path} was open to others; it is {mode:04o} now")


class LazyTlsConfig:
    """A stand-in for mitmproxy's TlsConfig that creates it at first use."""

    def __init__(self) -> None:
        self._made: TlsConfig | None = None

    def get_config(self) -> TlsConfig:
        if self._made is None:
            from mitmproxy.addons.tlsconfig import TlsConfig

            made = TlsConfig()
            made.load(Loader(ctx.master))  # type: ignore[no-untyped-call]
            # Reads the authority; all its other options have the values that it checks for changes only.
            made.running()  # type: ignore[no-untyped-call]
            self._made = made
        return self._made

    def configure(self, updated: set[str]) -> None:
        if self._made is not None:
            self._made.configure(updated)  # type: ignore[no-untyped-call]

    def tls_clienthello(self, data: ClientHelloData) -> None:
        self.get_config().tls_clienthello(data)

    def tls_start_client(self, data: TlsData) -> None:
        """Prepare a handshake, with HTTP/2 if offered; at the port itself only if offered alone: proxies use HTTP/1."""
        self.get_config().tls_start_client(data)
        offers = data.conn.alpn_offers
        if data.ssl_conn is None or b"h2" not in offers:
            return
        said = data.ssl_conn.get_app_data()
        if said["http2"] and (not said["client_alpn"] or b"http/1.1" not in offers):
            data.ssl_conn.set_app_data({**said, "client_alpn": b"h2"})

    def tls_start_server(self, data: TlsData) -> None:
        self.get_config().tls_start_server(data)
