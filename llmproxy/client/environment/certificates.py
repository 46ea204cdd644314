"""Files of certificates for a child that is intercepted: the combined bundle, Java's own store, and what is wrong with either.

Variables such as SSL_CERT_FILE *replace* what a program trusts. A bundle with the proxy's certificate alone would break every
connection that is tunnelled untouched, so it holds certifi's authorities, those the user had set, and the proxy's.
"""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from llmproxy.client.environment.variables import JAVA_PASSWORD
from llmproxy.errors import MachineError
from llmproxy.protocol import BUNDLES, NODE_CA

Which = Callable[[str], str | None]
_KEYTOOL_TIME = 60.0


def presets(env: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the bundles that an environment names already (a company's authority), each once."""
    named = dict.fromkeys(env[name] for name in (*BUNDLES, NODE_CA) if env.get(name))
    return tuple(path for path in map(Path, named) if path.is_file())


def combine(ca: Path, others: Iterable[Path], target: Path) -> Path:
    """Write a bundle of certifi's authorities, `others` and `ca` to `target`, at once (a reader never sees half of it).

    Raises:
        MachineError: the proxy's certificate is not there, or `target` cannot be written.

    """
    if problem := trouble(ca, now=None):
        raise MachineError(f"cannot intercept: {problem}")
    import certifi

    sources = [Path(certifi.where()), *others, ca]
    text = "\n".join(source.read_text("utf-8", "replace").strip() for source in dict.fromkeys(sources))
    part = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        part.write_text(text + "\n", encoding="utf-8")
        part.replace(target)
    except OSError as error:
        raise MachineError(f"cannot write {target}: {error.strerror or error}") from error
    return target


def trouble(ca: Path, now: float | None) -> str:
    """Say what is wrong with a certificate file: absent, not a certificate, expired at `now` (Unix time); empty if nothing."""
    if not ca.is_file():
        return f"the certificate {ca} does not exist (it was removed; restart the proxy, which makes it)"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(ca)
    except (ssl.SSLError, OSError) as error:
        return f"{ca} is no certificate: {error}"
    ends = [ssl.cert_time_to_seconds(str(each["notAfter"])) for each in context.get_ca_certs() if "notAfter" in each]
    if now is not None and ends and max(ends) < now:
        return f"the certificate {ca} has expired; remove it and restart the proxy"
    return ""


def java_truststore(ca: Path, folder: Path, which: Which = shutil.which) -> str:
    """Make a copy of Java's trusted authorities with `ca` in it, and return its path; empty where there is no Java.

    It is made once for each certificate: ``keytool`` takes a second.
    """
    keytool = which("keytool")
    if keytool is None:
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
        subprocess.run([*command, "-storepass", JAVA_PASSWORD], check=True, capture_output=True, timeout=_KEYTOOL_TIME)
        part.replace(target)
    except (OSError, subprocess.SubprocessError):
        part.unlink(missing_ok=True)
        return ""
    return str(target)
