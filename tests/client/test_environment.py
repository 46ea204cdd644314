"""The environment of a child, and its run variables."""

from __future__ import annotations

import os
import re
import shutil
import ssl
import subprocess
import time
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from llmproxy.client.child_env import (
    AWS_REGION,
    BASE_URLS,
    NODE_PRELOAD,
    TrustedCertificateFiles,
    combine_ca_bundles,
    describe_ca_file_problem,
    detect_cwd_home_date_variables,
    find_env_upstreams,
    find_zone_with_other_date,
    is_proxy_url,
    list_env_ca_bundles,
    make_java_truststore,
    parse_run_variable_options,
    plan_env,
)
from llmproxy.core.bindings import build_run_variable
from llmproxy.core.providers.provider_table import PROVIDERS
from llmproxy.core.providers.routing import route, split_session_from_path
from llmproxy.errors import MachineError, SettingsError
from llmproxy.protocol import BUNDLES, PLACEHOLDER_KEY, PROXIES
from tests.provider.tls import server_context

URL = "http://127.0.0.1:8080"


def test_base_urls_name_the_session_as_one_segment() -> None:
    """A slash, a space or a letter of another script in a name is no part of the path."""
    assert plan_env(URL, "a/b ü~2", {}, replay=False).base_urls["OPENAI_BASE_URL"] == f"{URL}/s/a%2Fb%20%C3%BC~2/v1"
    assert plan_env(URL + "/", None, {}, replay=False).base_urls["OPENAI_BASE_URL"] == f"{URL}/v1"


def test_presets_are_overwritten_in_every_spelling() -> None:
    """A variable that was kept would lead past the proxy."""
    before = {"OPENAI_BASE_URL": "https://gw/v1", "OPENAI_API_BASE": "https://gw/v1", "PATH": "/bin"}
    after = plan_env(URL, "x", before, replay=False).apply_to(before)
    assert after["OPENAI_BASE_URL"] == after["OPENAI_API_BASE"] == f"{URL}/s/x/v1"
    assert (after["PATH"], after["LLMPROXY_URL"]) == ("/bin", URL)


def test_what_was_preset_is_the_upstream_unless_it_is_ours() -> None:
    """A company's gateway stays where requests go."""
    env = {"OPENAI_BASE_URL": "https://gw/v1", "GROQ_BASE_URL": "http://localhost:8080/s/x/groq"}
    assert find_env_upstreams(env, URL) == {"openai": "https://gw/v1"}


@pytest.mark.parametrize(("env", "path", "upstreams"), [
    ({}, "/v1", {}),
    ({"TYPE": "anthropic"}, "/anthropic", {}),
    ({"TYPE": "azure"}, "/azure", {}),
    ({"BASE_URL": "https://gw.example/llm"}, "/v1", {"openai": "https://gw.example/llm"}),
    ({"TYPE": "anthropic", "BASE_URL": "https://gw.example"}, "/anthropic", {"anthropic": "https://gw.example"}),
    ({"BASE_URL": "https://api.x.ai/v1", "OPENAI_API_KEY": "sk"}, "/xai/v1", {"xai": "https://api.x.ai/v1"}),
    ({"BASE_URL": "https://api.openai.com/v1", "OPENAI_API_KEY": "sk"}, "/v1", {}),
    ({"BASE_URL": "http://gw/v1", "OPENAI_BASE_URL": "http://gw/v1", "OPENAI_API_KEY": "sk"}, "/v1",
     {"openai": "http://gw/v1"}),
    ({"BASE_URL": "https://gw.example/v1", "OPENAI_API_KEY": "sk"}, None, {}),
    ({"BASE_URL": "https://api.openai.com/v1", "OPENAI_BASE_URL": "https://gw/v1"}, None, {"openai": "https://gw/v1"}),
    ({"BASE_URL": f"{URL}/s/y/v1"}, "/v1", {}),
])  # fmt: skip
def test_copilot_asks_the_provider_that_it_was_given(
    env: dict[str, str], path: str | None, upstreams: dict[str, str]
) -> None:
    """By its own variables; where its key would reach another host than today's it is left alone and said, but in replay."""
    env = {name if name.startswith("OPENAI") else f"COPILOT_PROVIDER_{name}": value for name, value in env.items()}
    assert find_env_upstreams(env, URL) == upstreams
    made = plan_env(URL, "x", env, replay=False)
    assert made.base_urls.get("COPILOT_PROVIDER_BASE_URL") == (None if path is None else f"{URL}/s/x{path}")
    assert any("Copilot" in note for note in made.notes) == (path is None)
    replayed = plan_env(URL, "x", env, replay=True)
    assert replayed.base_urls["COPILOT_PROVIDER_BASE_URL"] == f"{URL}/s/x{path or '/v1'}"
    assert not any("Copilot" in note for note in replayed.notes)


def test_keys_get_a_placeholder_in_replay_only_and_never_over_one_that_is_set() -> None:
    """A real key is the user's; in modes with a network a wrong key would be sent."""
    env = {"OPENAI_API_KEY": "sk-mine", "ANTHROPIC_AUTH_TOKEN": "t", "GOOGLE_API_KEY": "g"}
    keys = plan_env(URL, "x", env, replay=True).keys
    assert keys["GROQ_API_KEY"] == PLACEHOLDER_KEY
    assert not {"OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "AZURE_OPENAI_API_KEY"} & set(keys)
    assert plan_env(URL, "x", env, replay=False).keys == {}


@pytest.mark.parametrize(("env", "names", "given"), [
    ({}, ("OPENAI_API_KEY",), {"OPENAI_API_KEY"}),
    ({"OPENAI_API_KEY": ""}, ("OPENAI_API_KEY", "GROQ_API_KEY"), {"OPENAI_API_KEY", "GROQ_API_KEY"}),
    ({}, ("ANTHROPIC_AUTH_TOKEN",), {"ANTHROPIC_AUTH_TOKEN"}),
    ({}, (), set()),
    ({}, ("AWS_PROFILE",), {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", *AWS_REGION}),
])  # fmt: skip
def test_placeholders_are_given_for_what_the_recording_needed(
    env: dict[str, str], names: tuple[str, ...], given: set[str]
) -> None:
    """A program that goes by which key is set chooses as it did; an empty key, as CI sets a secret it may not read, is none.

    A run that asks the provider gets no placeholder, and names the keys that it lacks; a region is none.
    """
    assert set(plan_env(URL, "x", env, replay=True, key_names=names).keys) == given
    live = plan_env(URL, "x", env, replay=False, key_names=names)
    assert (live.keys, set(live.unset_keys)) == ({}, given - set(AWS_REGION))


@pytest.mark.parametrize(("env", "files", "given"), [
    ({}, False, True),
    ({"AWS_PROFILE": "dev"}, False, False),
    ({}, True, False),
    ({"AWS_REGION": "eu-west-1"}, False, True),
])  # fmt: skip
def test_aws_gets_placeholders_only_where_it_has_no_credentials(env: dict[str, str], files: bool, given: bool) -> None:
    """A placeholder would hide the credentials that other services need."""
    keys = plan_env(URL, "x", env, replay=True, aws_files=files).keys
    assert ("AWS_ACCESS_KEY_ID" in keys) is given
    if given:
        assert keys["AWS_DEFAULT_REGION"] == env.get("AWS_REGION", "us-east-1")


def test_an_azure_endpoint_alone_keeps_openai_s_variables_unset() -> None:
    """Node's and LangChain's Azure clients refuse to start with both; and no placeholder sends OpenAI's client to its public host."""
    made = plan_env(URL, "x", {"AZURE_OPENAI_ENDPOINT": "https://n.openai.azure.com"}, replay=True)
    assert made.base_urls["AZURE_OPENAI_ENDPOINT"] == f"{URL}/s/x/azure"
    assert not {"OPENAI_BASE_URL", "OPENAI_API_BASE"} & set(made.base_urls)
    assert "OPENAI_API_KEY" not in made.keys
    assert made.notes
    both = plan_env(
        URL, "x", {"AZURE_OPENAI_ENDPOINT": "https://n.openai.azure.com", "OPENAI_API_KEY": "k"}, replay=True
    )
    assert both.base_urls["OPENAI_BASE_URL"] == f"{URL}/s/x/v1"
    assert "AZURE_OPENAI_ENDPOINT" not in plan_env(URL, "x", {}, replay=True).base_urls


@pytest.mark.parametrize(("url", "env", "merged"), [
    (URL, {}, "127.0.0.1,localhost,::1"),
    (URL, {"NO_PROXY": "corp.example, 127.0.0.1", "no_proxy": "other"},
     "corp.example,127.0.0.1,other,localhost,::1"),
    (URL, {"no_proxy": "*"}, "*"),
    ("http://llmproxy:8080", {}, "127.0.0.1,localhost,::1,llmproxy"),
])  # fmt: skip
def test_no_proxy_keeps_what_was_there_and_adds_us(url: str, env: dict[str, str], merged: str) -> None:
    """Both spellings say the same: programs read one or the other; in a compose file the proxy's host is a service."""
    others = plan_env(url, "x", env, replay=False).others
    assert others["NO_PROXY"] == others["no_proxy"] == merged


HOW = TrustedCertificateFiles("/ca.pem", "/bundle.pem", "/store.p12")


def test_interception_sets_every_proxy_and_certificate_variable() -> None:
    """Node adds to what it trusts, the others replace it."""
    env = {"SSL_CERT_FILE": "/company.pem", "HTTPS_PROXY": "http://corp:3128", "JAVA_TOOL_OPTIONS": "-Xmx1g"}
    env["NODE_OPTIONS"] = f"{NODE_PRELOAD} --no-warnings"  # a run inside a run names it once
    others = plan_env(URL, "a/b", env, replay=True, interception=HOW).others
    assert {others[name] for name in PROXIES} == {"http://a%2Fb:llmproxy@127.0.0.1:8080"}
    assert {others[name] for name in BUNDLES} == {"/bundle.pem"}
    assert (others["NODE_EXTRA_CA_CERTS"], others["NODE_USE_ENV_PROXY"]) == ("/ca.pem", "1")
    assert others["NODE_OPTIONS"] == f"--no-warnings {NODE_PRELOAD}"
    assert others["JAVA_TOOL_OPTIONS"].startswith("-Xmx1g -Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=8080")
    assert "-Djavax.net.ssl.trustStore=/store.p12" in others["JAVA_TOOL_OPTIONS"]


def test_interception_takes_back_what_exempts_a_provider() -> None:
    """NO_PROXY=* or .openai.com would send the traffic past us."""
    env = {"NO_PROXY": "*,.openai.com,api.anthropic.com,corp.example,googleapis.com,localhost:11434"}
    others = plan_env(URL, "x", env, replay=True, interception=HOW).others
    assert others["NO_PROXY"] == "corp.example,localhost:11434,127.0.0.1,localhost,::1"
    alone = plan_env(URL, "x", env, replay=True, interception=HOW, base_urls=False)
    assert (alone.others["NO_PROXY"], alone.base_urls) == ("corp.example", {})


def test_traces_of_the_agents_sdk_stay_at_home_in_replay_by_base_url() -> None:
    """They go to the public host whatever the base URL; intercepted or recorded they are left alone, and what was set stays."""
    name, url = "OPENAI_AGENTS_DISABLE_TRACING", "http://127.0.0.1:8080"
    assert plan_env(url, None, {}, replay=True).changes[name] == "1"
    assert name not in plan_env(url, None, {}, replay=False).changes
    assert (
        name not in plan_env(url, None, {}, replay=True, interception=TrustedCertificateFiles("ca", "bundle")).changes
    )
    assert plan_env(url, None, {name: "0"}, replay=True).apply_to({name: "0"})[name] == "0"


def test_an_endpoint_that_aws_was_told_to_ignore_is_heeded() -> None:
    """Botocore has a switch that would send Bedrock's traffic past us."""
    env = {"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}
    assert plan_env(URL, "x", env, replay=True).others["AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"] == "false"


@pytest.mark.parametrize(("value", "ours"), [
    ("http://127.0.0.1:8080/s/x/v1", True),
    ("http://localhost:8080", True),
    ("127.0.0.1:8080/ollama", True),
    ("http://x@127.0.0.1:8080", True),
    ("http://127.0.0.1:8081/v1", False),
    ("https://api.openai.com/v1", False),
    ("http://127.0.0.1:nonsense", False),
])  # fmt: skip
def test_an_address_of_ours_is_known(value: str, ours: bool) -> None:
    assert is_proxy_url(value, URL) is ours


YEAR = 365 * 24 * 3600.0


@pytest.fixture(scope="module")
def ca() -> Path:
    return server_context()[1]


def test_a_bundle_holds_everybody_s_authorities(ca: Path, tmp_path: Path) -> None:
    """What is tunnelled untouched must still be trusted, by the user's own authority as well."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(combine_ca_bundles(ca, [server_context()[1]], tmp_path / "bundle.pem"))
    names = re.findall(r"'commonName', '([^']+)'", str([each["subject"] for each in context.get_ca_certs()]))
    assert names.count("llmproxy test CA") == 2
    assert len(names) > 50
    assert [path.name for path in tmp_path.iterdir()] == ["bundle.pem"]


def test_a_certificate_that_was_removed_is_said(tmp_path: Path) -> None:
    """Before anything is run with a bundle that trusts nobody."""
    with pytest.raises(MachineError, match="does not exist"):
        combine_ca_bundles(tmp_path / "gone.pem", [], tmp_path / "bundle.pem")
    assert not (tmp_path / "bundle.pem").exists()


def test_what_is_wrong_with_a_certificate_is_named(ca: Path, tmp_path: Path) -> None:
    (tmp_path / "text.pem").write_text("hello")
    assert "does not exist" in describe_ca_file_problem(tmp_path / "gone.pem", time.time())
    assert "is no certificate" in describe_ca_file_problem(tmp_path / "text.pem", time.time())
    assert "has expired" in describe_ca_file_problem(ca, time.time() + YEAR)
    assert describe_ca_file_problem(ca, time.time()) == ""


def test_bundles_that_the_environment_names_are_found_once(ca: Path) -> None:
    """CI images preset several variables to one file."""
    env = {"SSL_CERT_FILE": str(ca), "REQUESTS_CA_BUNDLE": str(ca), "CURL_CA_BUNDLE": "/nosuch.pem"}
    assert list_env_ca_bundles(env) == (ca,)


def test_without_java_there_is_no_store_for_it(ca: Path, tmp_path: Path) -> None:
    assert make_java_truststore(ca, tmp_path, lambda _name: None) == ""


@pytest.mark.skipif(shutil.which("keytool") is None, reason="NOT RUN: keytool (Java) is not installed")
def test_java_trusts_its_own_authorities_and_ours(ca: Path, tmp_path: Path) -> None:
    made = Path(make_java_truststore(ca, tmp_path))
    assert made.is_file()
    stamp = made.stat().st_mtime_ns
    assert make_java_truststore(ca, tmp_path) == str(made)
    assert made.stat().st_mtime_ns == stamp


CHATS = "/openai/deployments/d/chat/completions?api-version=1"
CLAUDE = "/projects/p/locations/l/publishers/anthropic/models/c:rawPredict"
ANSWERS = {  # variable: what its SDK appends, provider, operation, target at the public host
    "OPENAI_BASE_URL": ("/chat/completions", "openai", "chat.completions", "/v1/chat/completions"),
    "OPENAI_API_BASE": ("/responses", "openai", "responses", "/v1/responses"),
    "ANTHROPIC_BASE_URL": ("/v1/messages", "anthropic", "messages", "/v1/messages"),
    "ANTHROPIC_API_URL": ("/v1/messages", "anthropic", "messages", "/v1/messages"),
    "GOOGLE_GEMINI_BASE_URL": ("/v1beta/models/g:generateContent", "gemini", "generateContent", None),
    "GEMINI_API_BASE": ("/models/g:generateContent", "gemini", "generateContent", "/v1beta/models/g:generateContent"),
    "GOOGLE_VERTEX_BASE_URL":
        ("/v1beta1/projects/p/locations/l/publishers/google/models/g:generateContent", "vertex", "generateContent", None),
    "ANTHROPIC_VERTEX_BASE_URL": (CLAUDE, "vertex", "messages", f"/v1{CLAUDE}"),
    "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": ("/model/m/converse", "bedrock", "converse", "/model/m/converse"),
    "AWS_BEDROCK_RUNTIME_ENDPOINT": ("/model/m/invoke", "bedrock", "invoke", "/model/m/invoke"),
    "ANTHROPIC_BEDROCK_BASE_URL": ("/model/m/invoke", "bedrock", "invoke", "/model/m/invoke"),
    "ANTHROPIC_BEDROCK_MANTLE_BASE_URL": ("/v1/messages", "bedrock", "messages", "/anthropic/v1/messages"),
    "CO_API_URL": ("/v2/chat", "cohere", "v2.chat", "/v2/chat"),
    "COHERE_API_BASE": ("", "cohere", "v2.chat", "/v2/chat"),
    "GROQ_BASE_URL": ("/openai/v1/chat/completions", "groq", "chat.completions", "/openai/v1/chat/completions"),
    "GROQ_API_BASE": ("/chat/completions", "groq", "chat.completions", "/openai/v1/chat/completions"),
    "TOGETHER_BASE_URL": ("/v1/chat/completions", "together", "chat.completions", "/v1/chat/completions"),
    "TOGETHER_AI_API_BASE": ("/chat/completions", "together", "chat.completions", "/v1/chat/completions"),
    "OPENROUTER_API_BASE": ("/chat/completions", "openrouter", "chat.completions", "/api/v1/chat/completions"),
    "OPENROUTER_BASE_URL": ("/chat/completions", "openrouter", "chat.completions", "/api/v1/chat/completions"),
    "MISTRAL_API_BASE": ("/chat/completions", "mistral", "chat.completions", "/v1/chat/completions"),
    "DEEPSEEK_API_BASE": ("/chat/completions", "deepseek", "chat.completions", "/chat/completions"),
    "XAI_API_BASE": ("/chat/completions", "xai", "chat.completions", "/v1/chat/completions"),
    "FIREWORKS_API_BASE": ("/chat/completions", "fireworks", "chat.completions", "/inference/v1/chat/completions"),
    "CEREBRAS_API_BASE": ("/chat/completions", "cerebras", "chat.completions", "/v1/chat/completions"),
    "NVIDIA_NIM_API_BASE": ("/chat/completions", "nvidia", "chat.completions", "/v1/chat/completions"),
    "WRITER_BASE_URL": ("/v1/chat", "writer", "writer.chat", "/v1/chat"),
    "OLLAMA_HOST": ("/api/chat", "ollama", "api.chat", "/api/chat"),
    "OLLAMA_API_BASE": ("/api/generate", "ollama", "api.generate", "/api/generate"),
    "AZURE_OPENAI_ENDPOINT": (CHATS, "azure", "chat.completions", CHATS),
    "AZURE_API_BASE": (CHATS, "azure", "chat.completions", CHATS),
    "ANTHROPIC_FOUNDRY_BASE_URL": ("/v1/messages", "azure", "messages", "/anthropic/v1/messages"),
    "ANTHROPIC_GOOGLE_CLOUD_BASE_URL": (CLAUDE, "vertex", "messages", None),
}  # fmt: skip


@pytest.mark.parametrize("each", BASE_URLS, ids=lambda each: each.name)
def test_what_a_sdk_asks_below_its_variable_reaches_its_provider(each: object) -> None:
    """The session, the provider, the operation and the target at the public host come out right."""
    name, path = getattr(each, "name", ""), getattr(each, "path", "")
    appended, provider, operation, target = ANSWERS[name]
    asked = f"/s/my%20test{path}{appended}"
    found = route(asked, (), {"azure": "https://x.openai.azure.com"})
    assert (found.provider.name, found.operation, found.known) == (provider, operation, True)
    assert split_session_from_path(asked)[0] == "my test"
    if target is not None:
        assert found.target == target


def test_every_variable_that_becomes_an_upstream_is_set() -> None:
    """A provider's variable that the child kept would lead past the proxy."""
    known = {variable for provider in PROVIDERS.values() for variable in provider.env}
    assert known - {each.name for each in BASE_URLS} == set()


def _named(found: list[dict[str, str]]) -> dict[str, dict[str, str]]:
    for each in found:
        build_run_variable(**each)
    return {each["name"]: each for each in found}


def test_a_child_has_a_folder_a_home_and_a_day(tmp_path: Path) -> None:
    """Links are known by both names; PWD says how the shell calls the folder."""
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    found = _named(
        detect_cwd_home_date_variables(
            {"HOME": "/users/ann", "PWD": str(link), "TMPDIR": "/scratch", "USER": "ann"}, real
        )
    )
    assert found["cwd"] == {"name": "cwd", "value": str(link), "other": os.path.realpath(real)}
    assert found["home"]["value"] == "/users/ann"
    assert found["tmp"]["value"] == "/scratch"
    assert found["user"]["value"] == "ann"
    assert _named(detect_cwd_home_date_variables({"PWD": "/nowhere"}, real))["cwd"]["value"] == str(real)


@pytest.mark.parametrize("home", ["/", "//", "/..", "///", ""])
def test_the_root_is_no_home(tmp_path: Path, home: str) -> None:
    """However it is written: a container's user may have none."""
    found = _named(detect_cwd_home_date_variables({"HOME": home, "TMPDIR": "//"}, tmp_path))
    assert "tmp" not in found
    assert home == "" or "home" not in found


def test_the_day_is_the_local_one_and_that_of_utc(tmp_path: Path) -> None:
    now = datetime(2026, 11, 22, 12, 0, tzinfo=timezone(timedelta(hours=5)))
    day = _named(detect_cwd_home_date_variables({}, tmp_path, now))["date"]
    assert day["value"] == now.astimezone().strftime("%Y-%m-%d")
    day = _named(detect_cwd_home_date_variables({}, tmp_path, datetime(2026, 11, 22, 23, 59, tzinfo=UTC)))["date"]
    assert "2026-11-22" in (day["value"], day.get("other"))


def test_the_day_is_that_of_the_childs_time_zone(tmp_path: Path) -> None:
    """TZ counts as it is handed in; one that nobody knows does not."""
    now = datetime(2026, 11, 22, 13, 0, tzinfo=UTC)
    there = _named(detect_cwd_home_date_variables({"TZ": "Pacific/Kiritimati"}, tmp_path, now))["date"]
    assert there == {"name": "date", "value": "2026-11-23", "other": "2026-11-22"}
    assert _named(detect_cwd_home_date_variables({"TZ": "nowhere/at-all"}, tmp_path, now))["date"]["value"]


@pytest.mark.parametrize("hour", [0, 9, 10, 11, 12, 13, 23])
def test_somewhere_it_is_another_day(hour: int, tmp_path: Path) -> None:
    """Whatever the hour is, and before or after the day that is given."""
    now = datetime(2026, 11, 22, hour, 30, tzinfo=UTC)
    for day in ("2026-11-21", "2026-11-22", "2026-11-23"):
        zone = find_zone_with_other_date(day, now)
        assert zone
        assert _named(detect_cwd_home_date_variables({"TZ": zone}, tmp_path, now))["date"]["value"] != day


def test_git_is_asked_where_it_is_wanted(tmp_path: Path) -> None:
    """Branch, status and commits; nothing in a folder without it."""
    assert not any(name.startswith("git") for name in _named(detect_cwd_home_date_variables({}, tmp_path, git=True)))
    for words in (
        ["init", "-q", "-b", "topic", "."],
        ["-c", "user.name=a", "-c", "user.email=b@c", "commit", "-qm", "one", "--allow-empty"],
    ):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    found = _named(detect_cwd_home_date_variables({}, tmp_path, git=True))
    assert (found["git_branch"]["value"], found["git_status"]["value"]) == ("topic", "(clean)")
    assert found["git_commits"]["value"].endswith(" one")
    named = {"GIT_AUTHOR_NAME": "Ann Smith", "GIT_AUTHOR_EMAIL": "ann@example.com"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in named.items():
            patch.setenv(name, value)
        found = _named(detect_cwd_home_date_variables({}, tmp_path, git=True))
    assert found["git_user"]["value"] == "Ann Smith <ann@example.com>"
    (tmp_path / "new").write_text("x")
    assert _named(detect_cwd_home_date_variables({}, tmp_path, git=True))["git_status"]["value"] == "?? new"
    assert not any(name.startswith("git") for name in _named(detect_cwd_home_date_variables({}, tmp_path)))


def test_what_was_typed_is_a_name_and_a_value() -> None:
    """A value may hold an equals sign; a name alone is an error."""
    assert parse_run_variable_options(["a=b=c"]) == [{"name": "a", "value": "b=c"}]
    for wrong in ("a", "=b", "a="):
        with pytest.raises(SettingsError):
            parse_run_variable_options([wrong])
