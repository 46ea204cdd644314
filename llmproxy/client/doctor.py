"""The checks of `llmproxy doctor`: pure functions of an environment, the proxy's reports and observed processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from llmproxy.amounts import name_some
from llmproxy.client.bypass_monitor import Address, MonitoredProcess
from llmproxy.client.child_env import BASE_URLS, LOOPBACK, NO_PROXIES, describe_certificate_problem, is_proxy_url
from llmproxy.client.known_clients import OTHER, find_runtime
from llmproxy.client.session_reports import Report, format_counts, sum_reports
from llmproxy.protocol import BUNDLES, NODE_CA, NODE_PROXY, PROXIES

_LONG = 80


class DiagnosisLevel(StrEnum):
    OK = "ok"
    NOTE = "note"
    BAD = "BAD"


OK, NOTE, BAD = DiagnosisLevel


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A finding, and what to do about it."""

    verdict: DiagnosisLevel
    text: str
    advice: tuple[str, ...] = ()


def check_variables(env: Mapping[str, str], url: str, *, intercepted: bool = False) -> list[Diagnosis]:
    """Check whether base-URL and proxy variables point to the proxy at `url`."""
    given = {each.name: env[each.name] for each in BASE_URLS if env.get(each.name)}
    ours = [name for name, value in given.items() if is_proxy_url(value, url)]
    others = {name: value for name, value in given.items() if name not in ours}
    proxied = [name for name in PROXIES if env.get(name) and is_proxy_url(env[name], url)]
    found = []
    if ours:
        found.append(Diagnosis(OK, f"{len(ours)} base-URL variables point to {url}: {name_some(ours, ' ')}"))
    for name, value in others.items():
        text = f"{name}={value[:_LONG]} points elsewhere: what reads it goes past the proxy"
        found.append(Diagnosis(NOTE if proxied else BAD, text, ('eval "$(llmproxy env)" sets it',)))
    if proxied:
        found.append(Diagnosis(OK, f"{' '.join(proxied)} point to the proxy"))
        if env.get(NODE_PROXY) != "1":
            text = f"{NODE_PROXY} is not 1: Node ignores the proxy variables"
            found.append(Diagnosis(BAD, text, (f"export {NODE_PROXY}=1",)))
    elif intercepted:
        found.append(Diagnosis(BAD, "HTTPS_PROXY does not point to the proxy: nothing is intercepted"))
    if not ours and not proxied:
        advice = ('eval "$(llmproxy env)"          for this shell', "llmproxy run -- COMMAND         for one command")
        text = "no variable of this shell points to the proxy: what it starts goes past it"
        found.append(Diagnosis(BAD, text, advice))
    return found


def check_own_address_exempt(env: Mapping[str, str], url: str) -> list[Diagnosis]:
    """Check that our address does not go through another proxy, and that no provider is exempt from ours."""
    foreign = [
        name
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
        if env.get(name) and not is_proxy_url(env[name], url)
    ]
    words = {word.strip().lower() for name in NO_PROXIES for word in env.get(name, "").split(",")}
    host = (urlsplit(url).hostname or "").lower()
    if foreign and not words & {host, "*"}:
        text = (
            f"{foreign[0]} is set and NO_PROXY does not name {host}: base URLs are asked through that proxy, and never "
            "arrive"
        )
        return [Diagnosis(BAD, text, (f"export NO_PROXY={','.join(LOOPBACK)} no_proxy={','.join(LOOPBACK)}",))]
    if any(env.get(name) and is_proxy_url(env[name], url) for name in PROXIES) and "*" in words:
        return [Diagnosis(BAD, "NO_PROXY is *: nothing goes through the proxy", ("unset NO_PROXY no_proxy",))]
    return [Diagnosis(OK, f"NO_PROXY names {host}")] if words & {host, "*"} else []


def check_certificates(env: Mapping[str, str], ca: str | None, now: float) -> list[Diagnosis]:
    """Check that the certificate exists, is valid at `now` (Unix time) and is in every configured bundle."""
    if ca is None:
        return [Diagnosis(NOTE, "the proxy does not intercept HTTPS: clients reach it by base URL only")]
    if problem := describe_certificate_problem(Path(ca), now):
        return [Diagnosis(BAD, problem)]
    mark = _read_certificate_body(Path(ca))
    found = []
    for name in (*BUNDLES, NODE_CA):
        value = env.get(name, "")
        if value and not Path(value).is_file():
            found.append(Diagnosis(BAD, f"{name} names {value}, which does not exist"))
        elif value and mark not in _read_certificate_body(Path(value)):
            advice = ("llmproxy run --intercept makes a bundle of both",)
            found.append(Diagnosis(BAD, f"{name} names {value}, which lacks the proxy's certificate", advice))
    trusting = [name for name in (*BUNDLES, NODE_CA) if env.get(name)]
    if not trusting:
        found.append(Diagnosis(NOTE, f"no variable names the proxy's certificate {ca}: only base URLs will work"))
    elif not found:
        found.append(Diagnosis(OK, f"the certificate {ca} is trusted by {name_some(trusting, ' ')}"))
    return found


def _read_certificate_body(path: Path) -> str:
    """Return the file without white space; for one certificate, the part between BEGIN and END."""
    text = "".join(path.read_text("utf-8", "replace").split())
    begin = "-----BEGINCERTIFICATE-----"
    return text.partition(begin)[2].partition("-----END")[0] if text.count(begin) == 1 else text


def diagnose_traffic(reports: Iterable[Report]) -> Diagnosis:
    total = sum_reports(reports)
    if not total.calls:
        return Diagnosis(BAD, "no request arrived at the proxy")
    return Diagnosis(OK, f"traffic arrived: {format_counts(total)}")


def check_processes(
    seen: Mapping[int, MonitoredProcess],
    past: Mapping[int, Sequence[Address]],
    url: str,
    *,
    intercepted: bool,
    arrived: bool,
) -> list[Diagnosis]:
    """Report programs that bypassed the proxy or lost its variables, and what to do for their runtimes."""
    found = []
    for pid, addresses in past.items():
        who = seen[pid]
        text = f"{who.program} ({pid}) {_describe_connections(addresses)} itself, past the proxy"
        found.append(Diagnosis(BAD, text, _list_runtime_advice([who], intercepted=intercepted)))
    names = (*(each.name for each in BASE_URLS), *PROXIES)
    for pid, who in seen.items():
        env = who.env or {}
        ours = any(env.get(name) and is_proxy_url(env[name], url) for name in names)
        if who.env is not None and who.looks > 1 and not ours:
            why = (
                "sudo, env -i, docker, ssh and systemd give their children another environment; a .env may override it"
            )
            found.append(Diagnosis(BAD, f"{who.program} ({pid}) runs without our variables", (why,)))
    if not arrived and not past:
        advice = _list_runtime_advice(seen.values(), intercepted=intercepted)
        found.append(Diagnosis(NOTE, "no connection to elsewhere was seen either", advice))
    return found


def _describe_connections(addresses: Sequence[Address]) -> str:
    """Describe a program's connections, and names it resolved without connecting."""
    deeds: dict[str, list[str]] = {}
    for host, port in addresses[:5]:
        deed, what = ("went to", f"{host}:{port}") if port else ("looked up", host)
        deeds.setdefault(deed, []).append(what)
    return " and ".join(f"{deed} {', '.join(what)}" for deed, what in deeds.items())


def _list_runtime_advice(who: Iterable[MonitoredProcess], *, intercepted: bool) -> tuple[str, ...]:
    """Return advice for the runtimes of these programs; for shells and the like only without other advice."""
    runtimes = list(dict.fromkeys(find_runtime(each.program) for each in who))
    known = [each for each in runtimes if each is not OTHER] or runtimes or [OTHER]
    lines = []
    for runtime in known:
        lines.append(f"{runtime.name}, by base URL: {runtime.base_url}")
        lines.append(f"{runtime.name}, by interception{'' if intercepted else ' (--intercept)'}: {runtime.intercept}")
    return tuple(lines)


def parse_url_address(url: str) -> Address:
    """Return host and port of a URL; other names than localhost are not resolved."""
    parts = urlsplit(url)
    host = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname or ""
    return host, parts.port or (443 if parts.scheme == "https" else 80)
