"""HTTPS interception by CONNECT, for clients that cannot change their base URL (`start --forward`, `run --intercept`).

    host in scope, the proxy itself       TLS ends here, and the same replay layer serves the requests inside
    any other host, a mode with a network tunnelled untouched
    any other host, replay                refused by name, unless --allow-host

The name in the proxy's URL (``HTTPS_PROXY=http://<session>@127.0.0.1:8080``) is the session of all requests on the
connection. Clients on other machines need the token as its password, and reach hosts in scope only.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import logging
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from mitmproxy import connection, http
from mitmproxy.proxy.server_hooks import ServerConnectionHookData

from llmproxy.core.engine.fault_injection import FaultFeature
from llmproxy.core.traffic.interaction import Headers, header
from llmproxy.errors import LLMProxyError, RefusedError, printable, remove_prefix
from llmproxy.mitm.proxy_context import ProxyContext, decode_fields
from llmproxy.parsers import host_matches
from llmproxy.protocol import OFFLINE

log = logging.getLogger(__name__)

LONGEST = 100
"""Maximum characters shown of a host name."""
NEEDS_TOKEN = (  # a text about one
    "from another machine this needs the proxy's token as the password in HTTPS_PROXY"  # noqa: S105 - as above
)
ONLY_SCOPE = "only LLM hosts are forwarded for other machines"


class HostNotForwarded(RefusedError):
    """The host is out of scope, and forwarding is not enabled."""

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


def is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def is_own_listener(client: connection.Client, host: str, port: int) -> bool:
    ours, listening = client.sockname[:2]
    local = host == "localhost" or is_loopback(host)
    return port == listening and (host == ours or (local and is_loopback(ours)))


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
    if is_loopback(client.peername[0]):
        return named
    if not _is_same_token(read_proxy_credentials(headers).password, proxy.token):
        raise RefusedError(f"llmproxy: {NEEDS_TOKEN}.")
    if not proxy.engine.dispatcher.is_host_in_scope(host, port):
        raise RefusedError(f"llmproxy: {ONLY_SCOPE}.")
    return named


class ConnectInterceptor:
    def __init__(self, proxy: ProxyContext, *, forward: bool) -> None:
        self._proxy, self._forward = proxy, forward

    def http_connect(self, flow: http.HTTPFlow) -> None:
        try:
            why = self._decide_tunnel(flow)
        except LLMProxyError as error:
            why = remove_prefix(error).replace("\n", " ")
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
        user, password = read_proxy_credentials(decode_fields(flow.request.headers.fields))
        local = is_loopback(client.peername[0])
        if not local and not _is_same_token(password, self._proxy.token):
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
        faults = self._proxy.engine.get_feature(FaultFeature)
        if (call := faults.on_tls_handshake(host, port, user)) is not None:
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


def _is_same_token(given: str, token: str) -> bool:
    return bool(token) and hmac.compare_digest(given.encode("utf-8"), token.encode("utf-8", "surrogateescape"))
