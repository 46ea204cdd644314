"""Bundles of certificates."""

from __future__ import annotations

import re
import shutil
import ssl
import time
from pathlib import Path

import pytest

from llmproxy.client.environment.certificates import combine, java_truststore, presets, trouble
from llmproxy.errors import MachineError
from tests.provider.tls import server_context

YEAR = 365 * 24 * 3600.0


@pytest.fixture(scope="module")
def ca() -> Path:
    """Make an authority."""
    return server_context()[1]


def subjects(bundle: Path) -> list[str]:
    """Return the common names in a bundle."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(bundle)
    return re.findall(r"'commonName', '([^']+)'", str([each["subject"] for each in context.get_ca_certs()]))


def test_a_bundle_holds_everybody_s_authorities(ca: Path, tmp_path: Path) -> None:
    """What is tunnelled untouched must still be trusted, by the user's own authority as well."""
    company = server_context()[1]
    bundle = combine(ca, [company], tmp_path / "bundle.pem")
    names = subjects(bundle)
    assert names.count("llmproxy test CA") == 2
    assert len(names) > 50
    assert [path.name for path in tmp_path.iterdir()] == ["bundle.pem"]


def test_a_certificate_that_was_removed_is_said(tmp_path: Path) -> None:
    """Before anything is run with a bundle that trusts nobody."""
    with pytest.raises(MachineError, match="does not exist"):
        combine(tmp_path / "gone.pem", [], tmp_path / "bundle.pem")
    assert not (tmp_path / "bundle.pem").exists()


def test_what_is_wrong_with_a_certificate_is_named(ca: Path, tmp_path: Path) -> None:
    """Removed, damaged, expired."""
    (tmp_path / "text.pem").write_text("hello")
    assert "does not exist" in trouble(tmp_path / "gone.pem", time.time())
    assert "is no certificate" in trouble(tmp_path / "text.pem", time.time())
    assert "has expired" in trouble(ca, time.time() + YEAR)
    assert trouble(ca, time.time()) == ""


def test_bundles_that_the_environment_names_are_found_once(ca: Path) -> None:
    """CI images preset several variables to one file."""
    env = {"SSL_CERT_FILE": str(ca), "REQUESTS_CA_BUNDLE": str(ca), "CURL_CA_BUNDLE": "/nosuch.pem"}
    assert presets(env) == (ca,)


def test_without_java_there_is_no_store_for_it(ca: Path, tmp_path: Path) -> None:
    """Nothing is made that nobody reads."""
    assert java_truststore(ca, tmp_path, lambda _name: None) == ""


@pytest.mark.skipif(shutil.which("keytool") is None, reason="NOT RUN: keytool (Java) is not installed")
def test_java_trusts_its_own_authorities_and_ours(ca: Path, tmp_path: Path) -> None:
    """Made once for each certificate."""
    made = Path(java_truststore(ca, tmp_path))
    assert made.is_file()
    stamp = made.stat().st_mtime_ns
    assert java_truststore(ca, tmp_path) == str(made)
    assert made.stat().st_mtime_ns == stamp
