"""HTTPS interception by CONNECT, for clients that cannot change their base URL, and the certificate authority for it.

    host in scope, the proxy itself       TLS ends here, and the same replay layer serves the requests inside
    any other host, a mode with a network tunnelled untouched
    any other host, replay                refused by name, unless --allow-host

The name in the proxy's URL (``HTTPS_PROXY=http://<session>@127.0.0.1:8080``) is the session of all requests on the
connection. Clients on other machines need the token as its password, and reach hosts in scope only.

The holder of the authority's key can read the traffic of all clients that trust it, so the folder has mode 0700 and the
key 0600. An authority that is expired or lacks its key is made anew, with a note; a certificate is written again from
the key's file; damaged files may be the user's own, so they are not overwritten. Of several proxies that start at once,
the first to link the key's file has created the authority.
"""

from __future__ import annotations

import atexit
import base64
import binascii
import ipaddress
import logging
import os
import shutil
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote_to_bytes

import certifi
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509 import BasicConstraints, Certificate, ExtensionNotFound, load_pem_x509_certificate
from mitmproxy import connection, ctx, http
from mitmproxy.addonmanager import Loader
from mitmproxy.certs import DEFAULT_DHPARAM, CertStore
from mitmproxy.proxy.server_hooks import ServerConnectionHookData
from mitmproxy.tls import ClientHelloData, TlsData

from llmproxy.core.control.endpoints import is_same_control_token
from llmproxy.core.engine.fault_injection import FaultFeature
from llmproxy.core.traffic.interaction import Headers, header
from llmproxy.errors import LLMProxyError, MachineError, RefusedError, printable, remove_program_prefix
from llmproxy.mitm.proxy_context import ProxyContext, decode_header_fields
from llmproxy.parsers import host_matches
from llmproxy.protocol import OFFLINE

if TYPE_CHECKING:
    from mitmproxy.addons.tlsconfig import TlsConfig

log = logging.getLogger(__name__)

LONGEST = 100
"""Maximum characters shown of a host name."""
NEEDS_TOKEN = (  # a text about one
    "from another machine this needs the proxy's token as the password in HTTPS_PROXY"  # noqa: S105 - as above
)
ONLY_SCOPE = "only LLM hosts are forwarded for other machines"


class HostNotForwarded(RefusedError):
    code = "llmproxy_not_forwarded"
    status = 403


class ProxyCredentials(NamedTuple):
    """User and password of a proxy's URL, percent-decoded; None if missing."""

    user: str | None
    password: str


def read_proxy_credentials(headers: Headers) -> ProxyCredentials:
    """Parse the proxy-authorization header. Raises RefusedError: a guess would mix two sessions."""
    scheme, _, value = (header(headers, "proxy-authorization") or "").partition(" ")
    if scheme.lower() != "basic":
        return ProxyCredentials(None, "")
    try:
        raw = base64.b64decode(value.strip(), validate=True)
        # Some clients decode the URL's user before they send it, others do not: a name without % comes to the same.
        user, password = (unquote_to_bytes(part).decode("utf-8") for part in raw.partition(b":")[::2])
    except (binascii.Error, UnicodeDecodeError) as error:
        hint = "Percent-encode it as UTF-8: HTTPS_PROXY=http://<session>@HOST:PORT"
        raise RefusedError("llmproxy: the user name in the proxy's URL cannot be read.", hint=hint) from error
    return ProxyCredentials(user or None, password)


def is_loopback_ip(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def is_own_listener(client: connection.Client, host: str, port: int) -> bool:
    ours, listening = client.sockname[:2]
    local = host == "localhost" or is_loopback_ip(host)
    return port == listening and (host == ours or (local and is_loopback_ip(ours)))


def authorize_destination(
    proxy: ProxyContext, client: connection.Client, named: tuple[str, str, int], headers: Headers
) -> tuple[str, str, int] | None:
    """Return a proxied request's (scheme, host, port), None for the proxy itself. Raises RefusedError."""
    scheme, host, port = named
    if is_own_listener(client, host, port):
        return None
    if not proxy.forward and not proxy.engine.dispatcher.is_host_in_scope(host, port):
        shown = printable(host[:LONGEST])
        why = "is in no provider's table, and this proxy forwards to LLM hosts only; nothing was sent."
        hint = f"Start it with --forward to use it as HTTP_PROXY, or name the host: --upstream NAME={scheme}://{shown}"
        raise HostNotForwarded(f"llmproxy: {shown} {why}", hint=hint)
    if is_loopback_ip(client.peername[0]):
        return named
    if not is_same_control_token(read_proxy_credentials(headers).password, proxy.token):
        raise RefusedError(f"llmproxy: {NEEDS_TOKEN}.")
    if not proxy.engine.dispatcher.is_host_in_scope(host, port):
        raise RefusedError(f"llmproxy: {ONLY_SCOPE}.")
    return named


class HttpConnectHandler:
    def __init__(self, proxy: ProxyContext, *, forward: bool) -> None:
        self._proxy, self._forward = proxy, forward

    def http_connect(self, flow: http.HTTPFlow) -> None:
        try:
            why = self._decide_tunnel(flow)
        except LLMProxyError as error:
            why = remove_program_prefix(error).replace("\n", " ")
        except Exception:  # what leaves a hook would open the tunnel
            log.exception("llmproxy failed while deciding about a tunnel; it is refused")
            why = "internal error"
        if why:
            self._proxy.tunnels.pop(flow.client_conn.id, None)
            flow.response = build_connect_refusal(flow.request.host, flow.request.port, why)
            self._report_refusal(flow, why)

    def _report_refusal(self, flow: http.HTTPFlow, why: str) -> None:
        try:
            target = f"{flow.request.host[:LONGEST]}:{flow.request.port}"
            self._proxy.on_call(
                self._proxy.engine.accounting.record_sessionless_refusal("CONNECT", target, 403, RefusedError(why))
            )
        except Exception:
            log.exception("could not report a refused tunnel")

    def _decide_tunnel(self, flow: http.HTTPFlow) -> str:
        client, host, port = flow.client_conn, flow.request.host.lower().rstrip("."), flow.request.port
        self._proxy.tunnels.pop(client.id, None)  # what an earlier CONNECT on this connection was permitted
        if not self._forward:
            return "this proxy is reached by base URL; start it with --forward to use it as HTTPS_PROXY"
        user, password = read_proxy_credentials(decode_header_fields(flow.request.headers.fields))
        local = is_loopback_ip(client.peername[0])
        if not local and not is_same_control_token(password, self._proxy.token):
            return NEEDS_TOKEN
        if user is not None:
            self._proxy.users[client.id] = user
        engine = self._proxy.engine
        stubbed = local and engine.dispatcher.may_host_be_stubbed(
            host, offline=engine.dispatcher.get_session_mode(user) in OFFLINE
        )
        if is_own_listener(client, host, port) or engine.dispatcher.is_host_in_scope(host, port) or stubbed:
            self._inject_tls_fault(client, host, port, user)
            return ""
        if not local:
            return ONLY_SCOPE
        if engine.dispatcher.get_session_mode(user) in OFFLINE and not host_matches(engine.config.allow_host, host):
            return f"in replay nothing leaves the machine; let it through with --allow-host {host[:LONGEST]}"
        self._proxy.tunnels[client.id] = (flow.request.host, port)
        return ""

    def _inject_tls_fault(self, client: connection.Client, host: str, port: int, user: str | None) -> None:
        """Make the following handshake fail if an injected fault says so."""
        self._proxy.without_tls.discard(client.id)
        if (call := self._proxy.engine.get_feature(FaultFeature).on_tls_handshake(host, port, user)) is not None:
            self._proxy.without_tls.add(client.id)
            self._proxy.on_call(call)


def build_connect_refusal(host: str, port: int, why: str) -> http.Response:
    """Return the answer to a refused CONNECT; most clients show only its reason phrase."""
    text = f"llmproxy: no tunnel to {host[:LONGEST]}:{port}: {why}"
    fields = {"content-type": "text/plain; charset=utf-8", "connection": "close"}
    response = http.Response.make(403, text + "\n", fields)
    response.reason = "Forbidden by " + "".join(char if " " <= char <= "~" else "?" for char in text)
    return response


def is_permitted_tunnel(proxy: ProxyContext, data: ServerConnectionHookData) -> bool:
    return data.server.address is not None and proxy.tunnels.get(data.client.id) == data.server.address[:2]


NAME = "mitmproxy"
"""Prefix of these files' names in mitmproxy."""
KEY = f"{NAME}-ca.pem"
CERTIFICATE = f"{NAME}-ca-cert.pem"
PARAMETERS = f"{NAME}-dhparam.pem"
BUNDLE = f"{NAME}-ca-bundle.pem"
KEY_SIZE = 2048


class CertificateAuthorityFiles(NamedTuple):
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


def get_certificate_authority_folder() -> Path:
    return Path(os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")) / "llmproxy"


def prepare_certificate_authority(folder: Path, now: datetime | None = None) -> CertificateAuthorityFiles:
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
    return CertificateAuthorityFiles(folder, tuple(notes))


def prepare_or_create_temporary_ca(folder: Path) -> CertificateAuthorityFiles:
    """Prepare the authority of a proxy for base URLs; if that fails, a temporary one, and a note with the reason."""
    try:
        return prepare_certificate_authority(folder)
    except MachineError as error:
        folder = Path(tempfile.mkdtemp(prefix="llmproxy-ca-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        note = f"https at the port has a certificate authority for this run alone: {error.message}"
        return CertificateAuthorityFiles(prepare_certificate_authority(folder).folder, (note,))


def _make_authority(folder: Path) -> None:
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
