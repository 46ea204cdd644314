"""``llmproxy doctor``: the command from end to end, and its checks."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from llmproxy.cli.doctor import (
    DiagnosisLevel,
    DoctorFinding,
    check_certificates,
    check_own_address_exempt,
    check_proxy_env_variables,
    check_traffic_arrived,
    diagnose_observed_proxy_bypasses,
    parse_url_host_and_port,
)
from llmproxy.client.bypass_monitor import BypassMonitoredProcess, ProxyBypassMonitor
from llmproxy.client.child_env import TrustedCertificateFiles, combine_ca_bundles, plan_env
from llmproxy.client.session_reports import SessionReport
from tests.cli.test_run import asking
from tests.provider.tls import server_context
from tests.support import pytest_run
from tests.support.forked import program
from tests.support.process import clean_env, free_port, llmproxy, needed
from tests.support.proxy import proxy

linux = pytest.mark.skipif(not ProxyBypassMonitor().is_supported, reason="NOT RUN: needs Linux's /proc")


def doctor(*words: str, env: Mapping[str, str] | None = None, code: int) -> str:
    """Run it to its end, which has this code; returns what it said."""
    done = llmproxy("doctor", *words, env=env)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def bad(said: str) -> list[str]:
    return [line[6:] for line in said.splitlines() if line.startswith("BAD")]


def test_a_command_that_uses_the_proxy_is_fine(tmp_path: Path) -> None:
    """Exit code 0, and what arrived."""
    said = doctor("--store", str(tmp_path / "x.db"), *asking("hi"), code=0)
    assert bad(said) == [], said
    assert "traffic arrived: 0 hits, 1 miss" in said


def test_tests_that_have_sessions_of_their_own_use_the_proxy(tmp_path: Path) -> None:
    """Their plugin has closed them before the doctor looks."""
    pytest_run.write(tmp_path, app=pytest_run.APP, test_it="from app import ask\ndef test_it(llmproxy): ask('hi')\n")
    tests = [*program("pytest"), *pytest_run.QUICK, *pytest_run.PLUGIN, str(tmp_path)]
    said = doctor("--store", str(tmp_path / "x.db"), *tests, code=0)
    assert (bad(said), "traffic arrived: 0 hits, 1 miss" in said) == ([], True), said


@linux
def test_a_client_that_goes_past_the_proxy_is_named_with_advice(tmp_path: Path) -> None:
    """Its base URL stands in its code."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket, time; s = socket.create_connection(('127.0.0.1', {port})); time.sleep(3)"
        env = {"OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1"}
        said = doctor("--store", str(tmp_path / "x.db"), "--", sys.executable, "-c", code, env=env, code=1)
    assert any(f"went to 127.0.0.1:{port} itself, past the proxy" in line for line in bad(said))
    assert "no request arrived at the proxy" in bad(said)
    assert "Python, by base URL" in said


@pytest.mark.slow
@pytest.mark.parametrize("program", ["python", "node"])
def test_a_client_is_named_that_never_gets_as_far_as_a_connection(program: str, tmp_path: Path) -> None:
    """No name can be resolved, as in many a build container: what it asked for is told from inside."""
    if program == "python":
        code = "import socket\ntry: socket.create_connection(('no.api.openai.invalid', 443))\nexcept OSError: pass"
        words = [sys.executable, "-c", code]
    else:
        code = "fetch('https://no.api.openai.invalid/v1').catch(() => 0)"
        words = [shutil.which("node") or needed("node"), "-e", code]
    said = doctor("--store", str(tmp_path / "x.db"), "--", *words, code=1)
    assert any("went to no.api.openai.invalid:443 itself, past the proxy" in line for line in bad(said)), said
    assert f"{program.title()}, by base URL" in said


@linux
def test_a_child_that_lost_its_environment_is_named(tmp_path: Path) -> None:
    said = doctor("--store", str(tmp_path / "x.db"), "--", "env", "-i", "/bin/sleep", "3", code=1)
    assert any("/bin/sleep" in line and "without our variables" in line for line in bad(said))


@pytest.mark.slow
def test_a_shell_without_variables_is_told_what_to_type(tmp_path: Path) -> None:
    """The proxy answers, but nobody is sent to it."""
    with proxy("replay", tmp_path / "x.db") as px:
        said = doctor(env={"LLMPROXY_URL": px.url}, code=1)
        assert bad(said) == ["no variable of this shell points to the proxy: what it starts goes past it"]
        assert 'eval "$(llmproxy env)"' in said
        doctor(env={"LLMPROXY_URL": px.url, "OPENAI_BASE_URL": f"{px.url}/v1"}, code=0)


def test_nobody_at_the_port_is_found() -> None:
    """The variable is set, the proxy is not there."""
    port = free_port()
    said = doctor(env={"LLMPROXY_PORT": str(port), "OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1"}, code=1)
    assert bad(said)[0].startswith(f"no llmproxy answers at http://127.0.0.1:{port}")


@pytest.mark.slow
@linux
def test_an_agent_that_runs_already_is_watched(tmp_path: Path) -> None:
    """Its own environment counts, not the shell's."""
    with proxy("replay", tmp_path / "x.db") as px:
        env = clean_env({"OPENAI_BASE_URL": "https://gw.example/v1"})
        with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"], env=env) as agent:
            said = doctor("--pid", str(agent.pid), env={"LLMPROXY_URL": px.url}, code=1)
            agent.terminate()
    assert any("OPENAI_BASE_URL=https://gw.example/v1 points elsewhere" in line for line in bad(said)), said


def test_a_process_that_is_not_there_is_an_error() -> None:
    """Neither is one that is both watched and run."""
    doctor("--pid", "4194303", code=3)
    doctor("--pid", str(os.getpid()), "--", *shlex.split("true"), code=2)


URL = "http://127.0.0.1:8080"


def verdicts(findings: list[DoctorFinding]) -> list[str]:
    return [str(each.verdict) for each in findings]


def test_our_own_environment_is_fine(tmp_path: Path) -> None:
    """What `run` sets is what the doctor wants, interception included."""
    ca = server_context()[1]
    how = TrustedCertificateFiles(str(ca), str(combine_ca_bundles(ca, [], tmp_path / "bundle.pem")))
    env = plan_env(URL, "x", {}, replay=True, interception=how).apply_to({})
    found = [
        *check_proxy_env_variables(env, URL, intercepted=True),
        *check_own_address_exempt(env, URL),
        *check_certificates(env, str(ca), time.time()),
    ]
    assert set(verdicts(found)) == {"ok"}


@pytest.mark.parametrize(("env", "words"), [
    ({}, "no variable of this shell points to the proxy"),
    ({"OPENAI_BASE_URL": "https://gw/v1"}, "OPENAI_BASE_URL=https://gw/v1 points elsewhere"),
    ({"HTTPS_PROXY": f"http://x@{URL[7:]}"}, "NODE_USE_ENV_PROXY is not 1"),
])  # fmt: skip
def test_a_variable_that_leads_elsewhere_is_named(env: dict[str, str], words: str) -> None:
    bad = [each for each in check_proxy_env_variables(env, URL) if each.verdict is DiagnosisLevel.BAD]
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
    assert check_traffic_arrived(SessionReport(name="a", cassette="a")).verdict is DiagnosisLevel.BAD
    assert "1 hit" in check_traffic_arrived(SessionReport(name="a", cassette="a", hits=1)).text


def test_who_went_past_is_named_with_advice_for_its_runtime() -> None:
    ours = {"OPENAI_BASE_URL": f"{URL}/v1"}
    seen = {
        1: BypassMonitoredProcess(1, "/bin/sh", ours, set(), 5),
        2: BypassMonitoredProcess(2, "/usr/bin/node", ours, set(), 5),
    }
    found = diagnose_observed_proxy_bypasses(seen, {2: [("1.2.3.4", 443)]}, URL, intercepted=False, arrived=False)
    assert [each.text for each in found] == ["/usr/bin/node (2) went to 1.2.3.4:443 itself, past the proxy"]
    assert all(line.startswith("Node") for line in found[0].advice)


def test_a_process_that_lost_the_variables_is_named() -> None:
    """Sudo and docker do that; what was seen but once, or may not be read, is not accused."""
    seen = {
        1: BypassMonitoredProcess(1, "a", {}, set(), 2),
        2: BypassMonitoredProcess(2, "b", {}, set(), 1),
        3: BypassMonitoredProcess(3, "c", None, set(), 9),
    }
    found = diagnose_observed_proxy_bypasses(seen, {}, URL, intercepted=False, arrived=True)
    assert [each.text for each in found] == ["a (1) runs without our variables"]


def test_where_nothing_was_seen_the_runtimes_advice_is_all_there_is() -> None:
    """No traffic and no connection: the doctor says what it knows of the programs."""
    seen = {1: BypassMonitoredProcess(1, "sh", None), 2: BypassMonitoredProcess(2, "ruby", None)}
    found = diagnose_observed_proxy_bypasses(seen, {}, URL, intercepted=True, arrived=False)
    assert [line.partition(",")[0] for line in found[0].advice] == ["Ruby", "Ruby"]
    assert "a local Ollama, are not watched" in found[0].text


def test_addresses_of_upstreams_have_their_scheme_s_port() -> None:
    """What the agent was configured for is what it may go to by itself."""
    assert parse_url_host_and_port("https://10.0.0.1/v1") == ("10.0.0.1", 443)
    assert parse_url_host_and_port("http://localhost:9") == ("127.0.0.1", 9)
