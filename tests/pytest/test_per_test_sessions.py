"""One proxy shared by the tests of a process."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from llmproxy.calls_and_totals import KEPT_MISSES
from llmproxy.client.control import session_url
from llmproxy.core.sessions.journal import IN_MEMORY
from llmproxy.errors import MachineError
from llmproxy.pytest.per_test_sessions import (
    SessionOptions,
    SharedProxy,
    choose_test_mode,
    make_cassette_name,
    read_test_live_channel_settings,
)
from llmproxy.pytest.run_proxies import PytestProcessResources
from llmproxy.pytest.run_summary import read_reported_misses
from tests.support import Proxy
from tests.support.process import ROOT, clean_env
from tests.support.proxy import ask_chat


@pytest.mark.parametrize("test", [
    "tests/a/test_x.py::TestY::test_z[oslo-1]", "test_x.py::test_" + "z" * 300, "ü.py::test_é[a/b::c]",
    "test_x.py::test_[]", "/",
])  # fmt: skip
def test_a_cassette_s_name_is_fit_for_a_url(test: str) -> None:
    """Readable, short, and no letter that anybody would encode."""
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,100}", make_cassette_name(test))


def test_names_are_readable_and_different() -> None:
    """The hash keeps apart what the slug makes alike."""
    assert make_cassette_name("tests/test_x.py::TestY::test_z[oslo 1]").startswith("test_x.TestY.test_z-oslo-1-")
    assert make_cassette_name("a/test_x.py::t") != make_cassette_name("b/test_x.py::t")


def shared(tmp_path: Path, env: dict[str, str]) -> SharedProxy:
    return SharedProxy(env, tmp_path, name="pytest-gw0")


def test_the_environment_is_set_before_anything_is_started_and_given_back(tmp_path: Path) -> None:
    """Clients read it at import; whoever changed a variable since keeps his."""
    env = {"OPENAI_BASE_URL": "https://gw/v1", "X": "1", "LLMPROXY_COMMAND": "/nosuch"}
    before = dict(env)
    one = shared(tmp_path, env)
    one.prepare()
    assert env["OPENAI_BASE_URL"] == f"{one.url}/s/pytest-gw0/v1"
    env["GROQ_BASE_URL"] = "mine"
    del env["ANTHROPIC_BASE_URL"]
    one.end()
    assert env == {**before, "GROQ_BASE_URL": "mine"}


def test_each_test_walks_its_own_cassette_under_the_process_s_address(tmp_path: Path) -> None:
    """One proxy, started when the first needs it; no request of one test counts for the next."""
    one = shared(tmp_path, clean_env())
    one.prepare()
    try:
        counts = []
        for name in ("a", "b"):
            walk = one.begin_test(SessionOptions(name, "replay"))
            assert ask_chat(f"{session_url(one.url, 'pytest-gw0')}/v1") == 404
            assert ask_chat(f"{walk.url}/v1") == 404
            assert walk.base_url == f"{one.url}/s/{name}/v1"
            assert len(walk.misses) == 2
            counts.append(one.finish_test(walk).misses)
            assert (walk.report().misses, one.finish_test(walk).misses) == (2, 2)
        assert counts == [2, 2]
    finally:
        one.end()


def test_of_many_misses_the_first_are_told(tmp_path: Path, px: Proxy) -> None:
    """The later ones follow from them. Where the proxy has forgotten some, by their texts alone."""
    one = shared(tmp_path, clean_env({"LLMPROXY_URL": px.url}))
    one.prepare()
    walk = one.begin_test(SessionOptions("many", "replay"))
    for count, forgotten in ((KEPT_MISSES + 2, False), (IN_MEMORY, True)):
        for n in range(count):
            ask_chat(walk.base_url, f"question {n}")
        found = read_reported_misses(walk)
        assert [each.text for each in found] == list(walk.misses)
        assert [not each.key for each in found] == [forgotten] * KEPT_MISSES
        if not forgotten:
            assert found == list(walk.list_newest_misses(count))[:KEPT_MISSES]
    one.finish_test(walk)
    one.end()


def test_a_running_proxy_is_used_where_the_environment_names_one(tmp_path: Path, px: Proxy) -> None:
    """Nothing is started, and it runs on afterwards."""
    env = clean_env({"LLMPROXY_URL": px.url, "LLMPROXY_COMMAND": "/nosuch"})
    one = shared(tmp_path, env)
    one.prepare()
    one.finish_test(one.begin_test(SessionOptions("c", "replay")))
    one.end()
    assert px.is_healthy()
    assert env["LLMPROXY_URL"] == px.url


def test_a_cassette_that_cannot_be_bound_is_closed_again(tmp_path: Path, px: Proxy) -> None:
    """A second binding of a process is refused, and leaves nothing open."""
    one = shared(tmp_path, clean_env({"LLMPROXY_URL": px.url}))
    one.prepare()
    walk = one.begin_test(SessionOptions("first", "replay"))
    with pytest.raises(MachineError, match="bound"):
        one.begin_test(SessionOptions("second", "replay"))
    assert "second" not in [each["name"] for each in px.control("sessions")["sessions"]]
    one.finish_test(walk)
    one.end()


@pytest.mark.parametrize(("given", "mode"), [
    ({}, "replay"),
    ({"ini": "once"}, "once"),
    ({"ini": "once", "variable": "auto"}, "auto"),
    ({"variable": "auto", "marker": "record"}, "record"),
    ({"marker": "record", "option": "none"}, "replay"),
    ({"option": "new_episodes"}, "auto"),
    ({"ini": "once", "ci": True}, "replay"),
    ({"marker": "passthrough", "ci": True}, "replay"),
    ({"marker": "replay", "variable": "auto", "ci": True}, "replay"),
    ({"marker": "record", "variable": "auto", "ci": True}, "auto"),
    ({"option": "once", "ci": True}, "once"),
])  # fmt: skip
def test_the_mode_is_chosen_by_whoever_is_nearest(given: dict[str, object], mode: str) -> None:
    """Command line, marker, variable, ini file; in CI only the command line and the variable make a test go live."""
    assert choose_test_mode(**given) == mode  # type: ignore[arg-type]


def test_a_marker_says_which_channels_are_live() -> None:
    """As a session takes it; the command line is nearer, and in CI it alone may spend money."""
    marker = {"live": "llm", "unknown_tool": "fail", "read_only": ["get_*"]}
    assert read_test_live_channel_settings(marker, "", ci=False) == {
        "live": ["llm"],
        "unknown_tool": "fail",
        "read_only": ["get_*"],
    }
    assert read_test_live_channel_settings(marker, "mcp,http", ci=False) == {**marker, "live": ["mcp", "http"]}
    assert read_test_live_channel_settings(marker, "", ci=True) is None
    assert read_test_live_channel_settings({}, "llm", ci=True) == {"live": ["llm"]}
    assert read_test_live_channel_settings({}, "", ci=False) is None
    with pytest.raises(ValueError, match="not one of llm, mcp, http"):
        read_test_live_channel_settings({"live": ["model"]}, "", ci=False)


def test_the_proxy_is_started_as_by_the_command(tmp_path: Path) -> None:
    """Recordings in tests/cassettes, the database where nobody commits it; a folder that is not there yet only where it is needed."""
    words = PytestProcessResources(tmp_path, "replay")._proxy_options({})
    assert f"--store={tmp_path / '.llmproxy' / 'llmproxy.db'}" in words
    assert not [word for word in words if word.startswith("--cassette-dir")]
    assert "--allow-live" not in words
    assert (tmp_path / ".llmproxy" / ".gitignore").read_text() == "*\n"
    recording = PytestProcessResources(tmp_path, "record")._proxy_options({})
    assert {f"--cassette-dir={tmp_path / 'tests' / 'cassettes'}", "--allow-live"} <= set(recording)
    assert f"--cassette-dir={tmp_path / 'mine'}" in PytestProcessResources(tmp_path, "replay", "mine")._proxy_options(
        {}
    )


def test_what_the_project_says_is_left_to_the_proxy(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.llmproxy]\nstore = "x.db"\ncassette-dir = "c"\n')
    words = PytestProcessResources(tmp_path, "record")._proxy_options({})
    assert not [word for word in words if word.startswith(("--store", "--cassette-dir"))]


def test_a_proxy_that_cannot_start_is_tried_once(tmp_path: Path) -> None:
    bench = PytestProcessResources(tmp_path, "replay")
    for env in ({"LLMPROXY_COMMAND": "/nosuch/llmproxy"}, {}):
        with pytest.raises(MachineError, match="cannot start the proxy"):
            bench.ensure_proxy(env)
    bench.close()


def test_a_running_proxy_is_used(tmp_path: Path, px: Proxy) -> None:
    """The one that LLMPROXY_URL names; it is not ended with us."""
    bench = PytestProcessResources(tmp_path, "replay")
    assert bench.ensure_proxy({"LLMPROXY_URL": px.url}) == px.url
    bench.close()
    assert px.is_healthy()


def test_workers_take_turns(tmp_path: Path) -> None:
    """Two processes never hold it at the same time."""
    code = f"""
import pathlib, time
from llmproxy.pytest.run_proxies import PytestProcessResources
root = pathlib.Path({str(tmp_path)!r})
for _ in range(20):
    with PytestProcessResources(root, "replay").lock():
        (root / "inside").mkdir()
        time.sleep(0.01)
        (root / "inside").rmdir()
"""
    env = clean_env({"PYTHONPATH": str(ROOT), "PYTEST_XDIST_WORKER": "gw0"})
    both = [subprocess.Popen([sys.executable, "-c", code], env=env, stderr=subprocess.PIPE) for _ in range(2)]
    assert [each.communicate(timeout=60)[1] for each in both] == [b"", b""]
    assert [each.returncode for each in both] == [0, 0]
