"""The checks of the doctor."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from llmproxy.client.bypass_monitor import MonitoredProcess
from llmproxy.client.child_env import CaFiles, combine_bundles, plan_env
from llmproxy.client.doctor import (
    Diagnosis,
    DiagnosisLevel,
    check_certificates,
    check_own_address_exempt,
    check_processes,
    check_variables,
    diagnose_traffic,
    parse_url_address,
)
from llmproxy.client.session_reports import Report
from tests.provider.tls import server_context

URL = "http://127.0.0.1:8080"


def verdicts(findings: list[Diagnosis]) -> list[str]:
    return [str(each.verdict) for each in findings]


def test_our_own_environment_is_fine(tmp_path: Path) -> None:
    """What `run` sets is what the doctor wants, interception included."""
    ca = server_context()[1]
    how = CaFiles(str(ca), str(combine_bundles(ca, [], tmp_path / "bundle.pem")))
    env = plan_env(URL, "x", {}, replay=True, interception=how).apply_to({})
    found = [
        *check_variables(env, URL, intercepted=True),
        *check_own_address_exempt(env, URL),
        *check_certificates(env, str(ca), time.time()),
    ]
    assert set(verdicts(found)) == {"ok"}


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({}, "no variable of this shell points to the proxy"),
        ({"OPENAI_BASE_URL": "https://gw/v1"}, "OPENAI_BASE_URL=https://gw/v1 points elsewhere"),
        ({"HTTPS_PROXY": f"http://x@{URL[7:]}"}, "NODE_USE_ENV_PROXY is not 1"),
    ],
)
def test_a_variable_that_leads_elsewhere_is_named(env: dict[str, str], words: str) -> None:
    bad = [each for each in check_variables(env, URL) if each.verdict is DiagnosisLevel.BAD]
    assert words in bad[0].text
    assert bad[0].advice


def test_a_company_s_proxy_without_an_exception_is_a_trap() -> None:
    """It is asked for 127.0.0.1, and answers with an error of its own."""
    env = {"HTTP_PROXY": "http://corp:3128"}
    assert verdicts(check_own_address_exempt(env, URL)) == ["BAD"]
    assert verdicts(check_own_address_exempt({**env, "no_proxy": "127.0.0.1"}, URL)) == ["ok"]
    assert verdicts(check_own_address_exempt({"HTTPS_PROXY": URL, "NO_PROXY": "*"}, URL)) == ["BAD"]


def test_a_bundle_without_our_certificate_is_found(tmp_path: Path) -> None:
    """Also one that is not there, and a certificate that has expired."""
    ca, other = server_context()[1], server_context()[1]
    now = time.time()
    env = {"SSL_CERT_FILE": str(other), "CURL_CA_BUNDLE": "/nosuch.pem", "NODE_EXTRA_CA_CERTS": str(ca)}
    texts = [each.text for each in check_certificates(env, str(ca), now)]
    assert ["lacks" in text or "does not exist" in text for text in texts] == [True, True]
    assert "expired" in check_certificates(env, str(ca), now + 1e9)[0].text
    assert verdicts(check_certificates({}, str(ca), now)) == verdicts(check_certificates({}, None, now)) == ["note"]


def test_traffic_is_what_arrived() -> None:
    """A session that nobody used is no traffic."""
    assert diagnose_traffic([Report(name="a", cassette="a")]).verdict is DiagnosisLevel.BAD
    assert "1 hit" in diagnose_traffic([Report(name="a", cassette="a", hits=1)]).text


def test_who_went_past_is_named_with_advice_for_its_runtime() -> None:
    ours = {"OPENAI_BASE_URL": f"{URL}/v1"}
    seen = {1: MonitoredProcess(1, "/bin/sh", ours, set(), 5), 2: MonitoredProcess(2, "/usr/bin/node", ours, set(), 5)}
    found = check_processes(seen, {2: [("1.2.3.4", 443)]}, URL, intercepted=False, arrived=False)
    assert [each.text for each in found] == ["/usr/bin/node (2) went to 1.2.3.4:443 itself, past the proxy"]
    assert all(line.startswith("Node") for line in found[0].advice)


def test_a_process_that_lost_the_variables_is_named() -> None:
    """Sudo and docker do that; what was seen but once, or may not be read, is not accused."""
    seen = {
        1: MonitoredProcess(1, "a", {}, set(), 2),
        2: MonitoredProcess(2, "b", {}, set(), 1),
        3: MonitoredProcess(3, "c", None, set(), 9),
    }
    found = check_processes(seen, {}, URL, intercepted=False, arrived=True)
    assert [each.text for each in found] == ["a (1) runs without our variables"]


def test_where_nothing_was_seen_the_runtimes_advice_is_all_there_is() -> None:
    """No traffic and no connection: the doctor says what it knows of the programs."""
    seen = {1: MonitoredProcess(1, "sh", None), 2: MonitoredProcess(2, "ruby", None)}
    found = check_processes(seen, {}, URL, intercepted=True, arrived=False)
    assert [line.partition(",")[0] for line in found[0].advice] == ["Ruby", "Ruby"]


def test_addresses_of_upstreams_have_their_scheme_s_port() -> None:
    """What the agent was configured for is what it may go to by itself."""
    assert parse_url_address("https://10.0.0.1/v1") == ("10.0.0.1", 443)
    assert parse_url_address("http://localhost:9") == ("127.0.0.1", 9)
