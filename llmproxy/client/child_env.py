"""The environment of a child whose LLM traffic goes through the proxy, as a pure function of the old one (WIRE.md 1.1,
4.1), and the child's run variables: folder, user, day, branch.

The proxy, started with the old environment, forwards to the old base URLs. A base URL needs a provider's prefix where
several share a path (``GET /v1/models``); OpenAI has none, so that ``--upstream default=URL`` keeps its meaning. SDKs
do not start without keys. Variables such as SSL_CERT_FILE *replace* the trusted certificates, so the bundle holds all.
An unknown run variable is not declared: a name that only one of two runs declares binds nothing.
"""

from __future__ import annotations

import getpass
import json
import os
import platform
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, urlsplit

from llmproxy.client.control import session_url
from llmproxy.core.providers.provider_table import BEARER_TOKEN, PROVIDERS
from llmproxy.core.providers.stubs import SIGN_IN_HOSTS, SIGN_IN_URLS
from llmproxy.core.providers.upstreams_and_rate_limits import (
    COPILOT_URL,
    copilot_url_differs_from_upstream,
    read_copilot_provider,
    read_env_upstreams,
)
from llmproxy.errors import MachineError, SettingsError, remove_program_prefix
from llmproxy.file_io import replace_file
from llmproxy.protocol import API_KEYS, BUNDLES, NODE_CA, NODE_PROXY, PLACEHOLDER_KEY, PROXIES, RUN_VARIABLE

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo


class BaseUrlVariable(NamedTuple):
    name: str
    path: str
    preset_only: bool = False
    """Whether it is set only if already set: its mere presence changes the behaviour of SDKs."""


BASE_URLS = tuple(
    BaseUrlVariable(name, provider.prefix + path, preset_only)
    for preset_only in (False, True)
    for provider in PROVIDERS.values()
    for name, path in provider.env.items()
    if (name in provider.only_if_set) == preset_only
)

AZURE = ("AZURE_OPENAI_ENDPOINT", "AZURE_API_BASE")
OPENAI = ("OPENAI_BASE_URL", "OPENAI_API_BASE")
"""Variables not set beside an Azure endpoint, since Node's and LangChain's Azure clients refuse to start with both."""
KEYS = tuple(key for provider in PROVIDERS.values() for key in provider.keys)

AWS_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID", "AWS_PROFILE", BEARER_TOKEN, "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CONFIG_FILE",
)  # fmt: skip
"""Variables that mean AWS credentials exist, which a placeholder would hide from S3 and others."""
AWS_PLACEHOLDERS = {"AWS_ACCESS_KEY_ID": PLACEHOLDER_KEY, "AWS_SECRET_ACCESS_KEY": PLACEHOLDER_KEY}
AWS_REGION = ("AWS_REGION", "AWS_DEFAULT_REGION")
AWS_IGNORES = "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"

QUIET = {"OPENAI_AGENTS_DISABLE_TRACING": "1"}
"""Variables that stop traffic past the proxy in replay by base URL: the Agents SDK always traces to api.openai.com."""

HASH_SEED = "PYTHONHASHSEED"
"""Variable without which a Python set, and so a request that lists it, has another order in each process."""
NO_PROXIES = ("NO_PROXY", "no_proxy")
LOOPBACK = ("127.0.0.1", "localhost", "::1")

JAVA_OPTIONS = "JAVA_TOOL_OPTIONS"
NODE_OPTIONS = "NODE_OPTIONS"
NODE_PRELOAD = f"--require {json.dumps((Path(__file__).parents[1] / 'data/node_proxy.cjs').as_posix())}"
"""Option that makes Node clients honour proxy variables; Node unquotes it like JSON."""
JAVA_PASSWORD = "changeit"  # noqa: S105 (of a file of public certificates: Java's own default)
PROXY_PASSWORD = "llmproxy"  # noqa: S105 (Node sends the user name, our session, only if there is a password)
URL_VARIABLE = "LLMPROXY_URL"


class TrustedCertificateFiles(NamedTuple):
    ca: str
    """File (PEM) with the proxy's certificate alone."""
    bundle: str
    """File (PEM) with all trusted certificates, the proxy's included."""
    truststore: str = ""
    """The same for Java; empty if there is none."""


@dataclass(frozen=True, slots=True)
class EnvironmentPlan:
    base_urls: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    """Placeholder keys."""
    others: Mapping[str, str] = field(default_factory=dict)
    """Proxies, certificates, NO_PROXY, the proxy's address."""
    notes: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    """Placeholder keys in the environment that the recorded run did not have."""
    unset_keys: tuple[str, ...] = ()
    """Keys of the recorded run that this run, which asks providers, lacks: replay sets placeholders for them."""

    @property
    def changes(self) -> dict[str, str]:
        return {**self.base_urls, **self.keys, **self.others}

    def apply_to(self, env: Mapping[str, str]) -> dict[str, str]:
        return {**{name: value for name, value in env.items() if name not in self.dropped}, **self.changes}


def plan_env(
    url: str, session: str | None, env: Mapping[str, str], *, replay: bool, base_urls: bool = True,
    interception: TrustedCertificateFiles | None = None, aws_files: bool = False, recorded: Sequence[str] = (),
    key_names: Sequence[str] | None = None,
) -> EnvironmentPlan:  # fmt: skip
    """Return the variables that a child of `env` needs; `session` None: for the proxy's own cassette.

    `replay`: nothing goes to a provider, so that no key is needed. Without `base_urls` all traffic is intercepted.
    `interception` adds proxy and certificate variables; `recorded`: hosts of other services intercepted too.
    `aws_files`: AWS credentials are configured in files. `key_names`: the only keys that get a placeholder; None for
    all known ones.
    """
    notes: list[str] = []
    urls = _build_base_urls(session_url(url, session), env, notes) if base_urls else {}
    urls |= _copilot_env(url, session_url(url, session), env, notes, replay=replay) if urls else {}
    others = {URL_VARIABLE: url.rstrip("/"), **({RUN_VARIABLE: session} if session else {})}
    if replay and base_urls and not interception:
        others |= {name: value for name, value in QUIET.items() if not env.get(name)}
    others |= {} if env.get(HASH_SEED) else {HASH_SEED: "0"}
    if replay and base_urls:
        others |= {name: session_url(url, session) + path for name, path in SIGN_IN_URLS.items()}
        others |= dict.fromkeys(SIGN_IN_HOSTS, urlsplit(url).netloc.rpartition("@")[2])
    if urls and env.get(AWS_IGNORES, "").lower() == "true":
        others[AWS_IGNORES] = "false"
    if interception:
        others |= _build_proxy_env(url, session, env, interception)
    bare = base_urls and not {*recorded} & {*LOOPBACK}  # a service on this machine is to be intercepted too
    others |= _rebuild_no_proxy(url, env, intercepted=interception is not None, loopback=bare, recorded=recorded)
    dropped = () if key_names is None else tuple(name for name, value in env.items() if value == PLACEHOLDER_KEY)
    env = {name: value for name, value in env.items() if name not in dropped}
    lacking = _build_key_placeholders(env, urls, aws_files=aws_files, wanted=key_names)
    keys = lacking if replay else {}
    unset = () if replay or key_names is None else tuple(x for x in lacking if lacking[x] == PLACEHOLDER_KEY)
    dropped = tuple(name for name in dropped if name not in keys)
    return EnvironmentPlan(urls, keys, others, tuple(notes), dropped, unset)


def is_proxy_url(value: str, url: str) -> bool:
    theirs, us = urlsplit(value if "://" in value else f"http://{value}"), urlsplit(url)
    try:
        same_port = theirs.port == us.port
    except ValueError:
        return False
    local = {theirs.hostname, us.hostname} <= set(LOOPBACK)
    return same_port and (theirs.hostname == us.hostname or local)


def find_env_upstreams(env: Mapping[str, str], url: str) -> dict[str, str]:
    """Return, by provider, base URLs in variables that are not ours: a running proxy must forward to them."""
    return read_env_upstreams(env, urlsplit(url).netloc.rpartition("@")[2])


def _build_base_urls(base: str, env: Mapping[str, str], notes: list[str]) -> dict[str, str]:
    found = {each.name: base + each.path for each in BASE_URLS if not each.preset_only or env.get(each.name)}
    if any(map(env.get, AZURE)) and not any(map(env.get, (*OPENAI, "OPENAI_API_KEY"))):
        for name in OPENAI:
            del found[name]
        notes.append(
            "OPENAI_BASE_URL is not set, because an Azure endpoint is and some Azure clients refuse both; "
            "set OPENAI_API_KEY to use OpenAI beside it"
        )
    return found


def _copilot_env(url: str, base: str, env: Mapping[str, str], notes: list[str], *, replay: bool) -> dict[str, str]:
    """Return variables that send Copilot's CLI through the proxy: without a provider of its own it uses GitHub."""
    if not replay and copilot_url_differs_from_upstream(env, urlsplit(url).netloc.rpartition("@")[2]):
        notes.append(
            f"{COPILOT_URL} is left as it is, so Copilot's calls go past the proxy: its host is not the one to which "
            "this provider's calls and key go; unset that key, or set its base URL to the same host"
        )
        return {}
    provider, path = read_copilot_provider(env)
    return {COPILOT_URL: base + provider.prefix + path}


def _build_key_placeholders(
    env: Mapping[str, str], urls: Mapping[str, str], *, aws_files: bool, wanted: Sequence[str] | None
) -> dict[str, str]:
    """Return placeholders for wanted keys that are not set, or empty, as CI sets a secret that it may not read. If it
    is unknown which a recording needs (None), an empty one stays: a program may choose a provider by it.
    """
    found = {
        name: PLACEHOLDER_KEY
        for key in KEYS
        if not any(env.get(name) for name in (key.name, *key.instead)) and (not key.needs or env.get(key.needs))
        for name in ((key.name,) if wanted is None else (key.name, *key.instead))
        if (name not in env if wanted is None else name in wanted and not env.get(name))
    }
    if urls and "OPENAI_BASE_URL" not in urls:
        found.pop("OPENAI_API_KEY", None)  # better no client than one that finds the public host
    is_aws = wanted is None or any(name in wanted for name in AWS_CREDENTIALS)
    if is_aws and not aws_files and not any(map(env.get, AWS_CREDENTIALS)):
        found |= AWS_PLACEHOLDERS
        region = next((env[name] for name in AWS_REGION if env.get(name)), "us-east-1")
        found |= {name: region for name in AWS_REGION if not env.get(name)}
    return found


def _build_proxy_env(
    url: str, session: str | None, env: Mapping[str, str], how: TrustedCertificateFiles
) -> dict[str, str]:
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    user = f"{quote(session, safe='')}:{PROXY_PASSWORD}@" if session else ""
    found = dict.fromkeys(PROXIES, f"http://{user}{place}")
    found |= dict.fromkeys(BUNDLES, how.bundle) | {NODE_CA: how.ca, NODE_PROXY: "1"}
    node = env.get(NODE_OPTIONS, "").replace(NODE_PRELOAD, "").strip()
    found[NODE_OPTIONS] = " ".join(filter(None, [node, NODE_PRELOAD]))
    places = (f"Host={parts.hostname}", f"Port={parts.port}")
    java = [f"-D{kind}.proxy{what}" for kind in ("https", "http") for what in places]
    java.append("-Dhttp.nonProxyHosts=localhost|127.*|[::1]")
    if how.truststore:
        java += [f"-Djavax.net.ssl.trustStore={how.truststore}", f"-Djavax.net.ssl.trustStorePassword={JAVA_PASSWORD}"]
    found[JAVA_OPTIONS] = " ".join(filter(None, [env.get(JAVA_OPTIONS, ""), *java]))
    return found


def _rebuild_no_proxy(
    url: str, env: Mapping[str, str], *, intercepted: bool, loopback: bool, recorded: Sequence[str] = ()
) -> dict[str, str]:
    """Merge NO_PROXY: old entries in both spellings, without those that exempt a provider, and our address."""
    words = [word.strip() for name in NO_PROXIES for word in env.get(name, "").split(",") if word.strip()]
    if intercepted:
        provided = [host.replace("*", "x") for provider in PROVIDERS.values() for host in provider.hosts]
        hosts = [host for host in provided if not host.startswith(("127.", "localhost", "["))]
        hosts += [host.replace("*", "x") for host in recorded if host not in LOOPBACK]
        words = [] if "*" in recorded else [word for word in words if not _exempts_provider(word, hosts)]
    if loopback:
        words += [*LOOPBACK, urlsplit(url).hostname or ""]
    else:  # a local Ollama is to be intercepted too
        words = [word for word in words if word.partition(":")[0] not in LOOPBACK and word not in LOOPBACK]
    return dict.fromkeys(NO_PROXIES, "*" if "*" in words else ",".join(dict.fromkeys(filter(None, words))))


def _exempts_provider(word: str, hosts: Iterable[str]) -> bool:
    suffix = word.lstrip("*.").lower()
    return word == "*" or any(host == suffix or host.endswith(f".{suffix}") for host in hosts)


def list_env_ca_bundles(env: Mapping[str, str]) -> tuple[Path, ...]:
    named = dict.fromkeys(env[name] for name in (*BUNDLES, NODE_CA) if env.get(name))
    return tuple(path for path in map(Path, named) if path.is_file())


def combine_ca_bundles(ca: Path, others: Iterable[Path], target: Path) -> Path:
    """Write certifi's authorities, `others` and `ca` to `target` atomically. Raises MachineError."""
    if problem := describe_ca_file_problem(ca, now=None):
        raise MachineError(f"cannot intercept: {problem}")
    import certifi

    sources = [Path(certifi.where()), *others, ca]
    text = "\n".join(source.read_text("utf-8", "replace").strip() for source in dict.fromkeys(sources))
    try:
        with replace_file(target) as file:
            file.write(text + "\n")
    except OSError as error:
        raise MachineError(f"cannot write {target}: {error.strerror or error}") from error
    return target


def write_ca_bundle_files(url: str, ca: str | None, others: Iterable[Path], bundle: Path) -> TrustedCertificateFiles:
    """Write the bundle and Java's truststore. Raises MachineError: no interception (`ca` is None), no certificate."""
    if ca is None:
        hint = "Start it with --forward, or leave --intercept out."
        raise MachineError(f"the proxy at {url} does not intercept HTTPS.", hint=hint)
    return TrustedCertificateFiles(
        ca, str(combine_ca_bundles(Path(ca), others, bundle)), make_java_truststore(Path(ca), bundle.parent)
    )


def describe_ca_file_problem(ca: Path, now: float | None) -> str:
    """Describe a certificate file's problem at `now` (Unix time): missing, invalid, expired; else ""."""
    if not ca.is_file():
        return f"the certificate {ca} does not exist (it was removed; restart the proxy, which makes it)"
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(ca)
    except (ssl.SSLError, OSError) as error:
        return f"{ca} is no certificate: {error}"
    ends = [ssl.cert_time_to_seconds(str(each["notAfter"])) for each in context.get_ca_certs() if "notAfter" in each]
    if now is not None and ends and max(ends) < now:
        return f"the certificate {ca} has expired; remove it and restart the proxy"
    return ""


def make_java_truststore(ca: Path, folder: Path, which: Callable[[str], str | None] = shutil.which) -> str:
    """Return a copy of Java's truststore with `ca`, cached for each (``keytool`` takes 1 s); or ""."""
    if (keytool := which("keytool")) is None:
        return ""
    known = Path(keytool).resolve().parents[1] / "lib" / "security" / "cacerts"
    target = folder / f"{ca.stem}-java.p12"
    if target.is_file() and target.stat().st_mtime >= ca.stat().st_mtime:
        return str(target)
    part = target.with_name(f"{target.name}.{os.getpid()}")
    if known.is_file():
        shutil.copyfile(known, part)
    command = [keytool, "-importcert", "-noprompt", "-alias", "llmproxy", "-file", str(ca), "-keystore", str(part)]
    try:
        subprocess.run([*command, "-storepass", JAVA_PASSWORD], check=True, capture_output=True, timeout=60)
        part.replace(target)
    except (OSError, subprocess.SubprocessError):
        part.unlink(missing_ok=True)
        return ""
    return str(target)


def in_ci(env: Mapping[str, str]) -> bool:
    return env.get("CI", "").strip().lower() not in ("", "0", "false", "no")


Declared = list[dict[str, str]]


def detect_cwd_home_date_variables(
    env: Mapping[str, str], cwd: Path, now: datetime | None = None, *, git: bool = False
) -> Declared:
    """Return the run variables of a child in `cwd`; `now`: aware time, default now; `git` adds git's."""
    here = (now or datetime.now(UTC)).astimezone(_read_tz_variable(env))
    day, utc = here.strftime("%Y-%m-%d"), here.astimezone(UTC).strftime("%Y-%m-%d")
    found: Declared = [build_path_run_variable("cwd", _find_logical_cwd(cwd, env))]
    found.append(build_path_run_variable("home", Path(env.get("HOME") or env.get("USERPROFILE") or Path.home())))
    found.append(build_path_run_variable("tmp", Path(env.get("TMPDIR") or tempfile.gettempdir())))
    found.append({"name": "date", "value": day} | ({"other": utc} if utc != day else {}))
    words = {
        "user": env.get("USER") or env.get("LOGNAME") or _find_user_name(),
        "host": socket.gethostname(),
        "timezone": env.get("TZ") or here.tzname() or "",
        "shell": env.get("SHELL", "").rpartition("/")[2],
        "os_version": f"{platform.system()} {platform.release()}",
        API_KEYS: " ".join(list_set_api_keys(env)) or "none",
    }
    found += [{"name": name, "value": value} for name, value in words.items() if value]
    told = [each for each in found if each["value"].strip("/\\.")]  # the root is in every path
    return [*told, *(_read_git_state(cwd) if git else [])]


def list_set_api_keys(env: Mapping[str, str]) -> list[str]:
    """Return the names, never the values, of providers' key variables that are set."""
    known = {name for key in KEYS for name in (key.name, *key.instead)} | {"AWS_ACCESS_KEY_ID", "AWS_PROFILE"}
    return sorted(name for name in known if env.get(name) not in (None, "", PLACEHOLDER_KEY))


def _read_tz_variable(env: Mapping[str, str]) -> ZoneInfo | None:
    if not env.get("TZ"):
        return None
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(env["TZ"].removeprefix(":"))
    except (ZoneInfoNotFoundError, ValueError, OSError):  # ``EST5EDT,M3.2.0`` and the like: the C library knows
        return None


def _find_logical_cwd(cwd: Path, env: Mapping[str, str]) -> Path:
    """Return the folder as the shell names it, with its symbolic links, if PWD agrees."""
    with suppress(OSError):
        said = Path(env.get("PWD", ""))
        if said.is_absolute() and said.samefile(cwd):
            return said
    return cwd


def build_path_run_variable(name: str, path: Path) -> dict[str, str]:
    plain, real = os.path.abspath(path), os.path.realpath(path)  # noqa: PTH100 - Path.resolve follows links
    return {"name": name, "value": plain} | ({"other": real} if real != plain else {})


def _find_user_name() -> str:
    with suppress(OSError, KeyError, ImportError):  # a container may run under a number without a name
        return getpass.getuser()
    return ""


def _read_git_state(cwd: Path) -> Declared:
    if not any((folder / ".git").exists() for folder in (cwd, *cwd.parents)):
        return []
    status = _run_git(cwd, "status", "--short")
    who = _run_git(cwd, "var", "GIT_AUTHOR_IDENT")  # Ann Smith <ann@example.com> 1795000000 +0000
    found = {
        "git_user": who and " ".join(who.split(" ")[:-2]),
        "git_branch": _run_git(cwd, "branch", "--show-current"),
        "git_status": None if status is None else status or "(clean)",
        "git_commits": _run_git(cwd, "log", "--oneline", "-n", "5"),
    }
    return [{"name": name, "value": value[:10_000]} for name, value in found.items() if value]


def _run_git(cwd: Path, *words: str) -> str | None:
    try:
        command, env = ["git", "-c", "core.fsmonitor=false", *words], {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, timeout=2.0, check=False, env=env, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip("\n") if done.returncode == 0 else None


def parse_run_variable_options(given: list[str]) -> Declared:
    """Parse arguments of the form ``NAME=VALUE``. Raises SettingsError."""
    from llmproxy.core.bindings.run_variables import BadRunVariable, build_run_variable

    found = []
    for each in given:
        name, mark, value = each.partition("=")
        if not mark or not name or not value:
            raise SettingsError(f"--var {each!r}: it is NAME=VALUE, as in task=1007.")
        try:
            build_run_variable(name, value)
        except BadRunVariable as error:
            raise SettingsError(f"--var {each!r}: {remove_program_prefix(error)}") from error
        found.append({"name": name, "value": value})
    return found


_ZONES = ("Pacific/Kiritimati", "Etc/GMT+12")
"""Zones 26 hours apart: one of them has another date than any given one."""


def find_zone_with_other_date(day: str, now: datetime | None = None) -> str:
    """Return a time zone with another date than ``2026-11-22``, so another hour too; empty if none is known."""
    moment = now or datetime.now(UTC)
    zones = ((name, _read_tz_variable({"TZ": name})) for name in _ZONES)
    return next((name for name, zone in zones if zone and moment.astimezone(zone).strftime("%Y-%m-%d") != day), "")
