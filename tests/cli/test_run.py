"""``llmproxy run``, as a real process around real children."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from llmproxy.protocol import PLACEHOLDER_KEY
from tests.provider import Provider, step
from tests.support.asking import ASK_EACH as ASK
from tests.support.forked import program
from tests.support.process import clean_env, free_port, llmproxy, needed, python
from tests.support.proxy import Proxy, proxy
from tests.support.pytest_run import at

RUN = (*program("llmproxy"), "run")


run = partial(llmproxy, "run")


def run_at(px: Proxy, *words: str, text: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run it at a proxy that runs already, where what starts one is not the question."""
    return run(*words, env={"LLMPROXY_URL": px.url}, text=text, cwd=cwd)


def asking(*texts: str) -> list[str]:
    return [python(), "-c", ASK, *texts]


def test_a_command_is_recorded_and_replayed_without_its_knowledge(tmp_path: Path) -> None:
    """The preset base URL is where the proxy forwards to; the replay needs neither it nor a key."""
    store = str(tmp_path / "x.db")
    with Provider([step(user="hi", say="hello", times=1)]) as provider:
        told = tmp_path / "told.json"
        options = ["--mode", "record", "--cassette", "a b", "--store", store, "--json", str(told)]
        first = run(*options, "--", *asking("hi"), env=at(provider))
    result = json.loads(told.read_text())
    assert (result["recorded"], result["misses"], result["command_exit_code"], result["exit_code"]) == (1, 0, 0, 0)
    assert (first.returncode, first.stdout) == (0, "hello\n")
    assert "0 hits, 0 misses, 1 recorded" in first.stderr
    again = run("--cassette", "a b", "--store", store, *asking("hi"))
    assert (again.returncode, again.stdout) == (0, "hello\n")
    assert again.stderr.startswith("llmproxy: 1 hit, 0 misses, 0 recorded")
    assert len(again.stderr.splitlines()) == 1


@pytest.mark.parametrize(("given", "ending", "said"), [
    ({"say": "hello"}, "", ""),
    ({"say": "hello"}, "raise SystemExit(3)", "the command ended with 3"),
    ({"say": "hello"}, "import signal; os.kill(os.getpid(), signal.SIGINT)", "the command was interrupted"),
    ({"status": 500, "json": {"error": {"message": "no"}}}, "", "an answer failed or was cut off"),
    ({"status": 401, "json": {"error": {"message": "no"}}}, "raise SystemExit(1)", "openai answered 401 (check the key)"),
])  # fmt: skip
def test_an_incomplete_recording_is_said(tmp_path: Path, given: dict[str, Any], ending: str, said: str) -> None:
    """With the reason, wherever `ls` calls it incomplete."""
    with Provider([step(user="hi", **given)]) as provider:
        words = ["--mode", "record", "--", sys.executable, "-c", ASK + ending, "hi"]
        done = run(*words, cwd=tmp_path, env={"OPENAI_BASE_URL": provider.url + "/v1"})
    line = f"llmproxy: {said}: this recording is incomplete.\n"
    assert (line in done.stderr, "incomplete" in done.stderr) == (bool(said), bool(said)), done.stderr
    assert ("incomplete" in llmproxy("ls", cwd=tmp_path).stdout) is bool(said)
    missed = run("--", *asking("another"), cwd=tmp_path)
    assert ("the recording is incomplete" in missed.stderr) is bool(said)
    failed = "  1 answer had failed or been cut when recorded: --mode auto asks again\n"
    assert (failed in run(*words[2:], cwd=tmp_path).stderr) is ("status" in given)


def test_the_child_has_our_input_output_and_exit_code(px: Proxy) -> None:
    """It cannot tell that we are there; we say one thing, on stderr."""
    done = run_at(px, "sh", "-c", "cat; echo err >&2; exit 7", text="from outside")
    assert (done.returncode, done.stdout) == (7, "from outside")
    assert done.stderr.startswith("err\n")


def test_a_miss_is_said_and_is_the_exit_code_on_request(tmp_path: Path) -> None:
    """The child swallowed it and ended with 0."""
    words = ["--store", str(tmp_path / "x.db"), *asking("hi", "hi", "you")]
    quiet = run(*words)
    assert (quiet.returncode, quiet.stdout) == (0, "HTTP 404\n" * 3)
    assert "miss: no recorded response for this request (openai chat.completions gpt-4o)" in quiet.stderr
    assert "  Record what is missing: llmproxy run --mode auto " in quiet.stderr
    assert "llmproxy why" not in quiet.stderr
    assert run("--fail-on-miss", *words).returncode == 4


def test_a_replay_that_no_file_holds_fails_in_ci(tmp_path: Path) -> None:
    """The store alone answers, and a clone has files alone: it is said, and ends with 4 where CI is set."""
    (tmp_path / "files").mkdir()
    with Provider([step(user="hi", say="hello", times=1)]) as provider:
        run("--mode", "record", *asking("hi"), cwd=tmp_path, env={"OPENAI_BASE_URL": provider.url + "/v1"})
    done = [run("--cassette-dir", "files", *asking("hi"), cwd=tmp_path, env={"CI": ci}) for ci in ("", "1")]
    assert [each.returncode for each in done] == [0, 4]
    assert "1 hit is of what stands in the store alone" in done[0].stderr
    assert done[0].stderr.rstrip().rpartition("llmproxy ")[2] == "export --all files"


def test_what_a_miss_advises_is_what_was_typed(tmp_path: Path) -> None:
    """`llmproxy run` again, with what it was told; a session of a test in it names its cassette itself."""
    code = ASK.replace('print("HTTP", error.code)', 'print(json.load(error)["error"]["message"])')
    done = run("--cassette", "trip", "--", python(), "-c", code, "hi", cwd=tmp_path)
    assert "  1. record what is missing: llmproxy run --mode auto --cassette trip -- COMMAND\n" in done.stdout
    inner = code.replace('os.environ["OPENAI_BASE_URL"]', 'os.environ["OPENAI_BASE_URL"].replace("/s/trip", "/s/mine")')
    done = run("--cassette", "trip", "--", python(), "-c", inner, "hi", cwd=tmp_path)
    assert 'session "mine"' in done.stdout
    assert "  1. record what is missing: llmproxy run --mode auto -- COMMAND\n" in done.stdout


def test_an_upstream_that_cannot_be_reached_is_said(tmp_path: Path) -> None:
    """Who, where and why; the child may have swallowed it."""
    url = f"http://127.0.0.1:{free_port()}"
    words = ["--mode", "record", "--store", str(tmp_path / "x.db"), *asking("hi")]
    done = run(*words, env={"OPENAI_BASE_URL": f"{url}/v1"})
    assert done.stdout == "HTTP 502\n"
    assert f"  refused: openai at {url} could not be reached: Connection refused" in done.stderr.splitlines()
    assert done.stderr.endswith("llmproxy: openai did not answer; nothing was recorded.\n")


def test_a_child_that_never_used_the_proxy_is_said_loudly(px: Proxy) -> None:
    """With the variables that it was given, and what to do next."""
    done = run_at(px, "--", "true")
    assert done.returncode == 0
    assert "NEVER USED THE PROXY" in done.stderr
    assert "OPENAI_BASE_URL" in done.stderr
    assert "llmproxy doctor" in done.stderr


@pytest.mark.slow
def test_a_client_that_reads_no_variable_is_told_what_to_set(px: Proxy, tmp_path: Path) -> None:
    """Codex without a provider of its own, and a project that uses @ai-sdk/google: each with the words to type."""
    codex = tmp_path / "codex"
    codex.write_text("#!/bin/sh\nexit 0\n")
    codex.chmod(0o755)
    (tmp_path / "package.json").write_text('{"dependencies": {"@ai-sdk/google": "^3"}}')
    done = run_at(px, "--", str(codex), "exec", "hi", cwd=tmp_path)
    assert "Codex: it reads no variable: codex exec -c model_provider=x" in done.stderr
    assert "@ai-sdk/google: it reads no variable: createGoogleGenerativeAI({ baseURL:" in done.stderr
    assert "Codex:" not in run_at(px, "--", str(codex), "-c", "model_providers.x.base_url=$OPENAI_BASE_URL").stderr


@pytest.mark.parametrize("option", ["--fail-on-miss", "--strict"])
def test_a_command_that_never_used_the_proxy_proves_nothing(option: str, px: Proxy) -> None:
    """Whoever wants to be told of misses is told that nothing was asked at all."""
    done = run_at(px, option, "--", "true")
    assert done.returncode == 4
    assert f"llmproxy: exit code 4 because of {option}: no request came" in done.stderr


@pytest.mark.slow
def test_strict_wants_every_recording_used(tmp_path: Path) -> None:
    """Two recordings, one asked for: 4 under --strict, 0 under --fail-on-miss; both asked for: 0; none: a cache, or why it failed: a key for one.

    In replay a placeholder stands in for the recorded run's key, also for one that is set but empty; `--mode auto` needs the key.
    """
    store = ["--store", str(tmp_path / "x.db")]
    with Provider([step(user="hi", say="hello"), step(user="you", say="me")]) as provider:
        assert run("--mode", "record", "--strict", *store, *asking("hi", "you"), env=at(provider)).returncode == 0
    half = run("--strict", *store, *asking("hi"))
    assert half.returncode == 4
    assert "llmproxy: exit code 4 because of --strict: 1 recording unused." in half.stderr
    assert run("--fail-on-miss", *store, *asking("hi")).returncode == 0
    assert run("--strict", *store, *asking("hi", "you")).returncode == 0
    cached = run(*store, "--", "true", env={"DSPY_CACHEDIR": str(tmp_path)}).stderr
    assert "ASKED FOR NONE of the 2 recorded calls of cassette default, and ended with 0" in cached
    assert f"    DSPy: {tmp_path} exists; without it: dspy.configure_cache(enable_disk_cache=False)" in cached
    assert "ENDED WITH 3 and asked for none of the 2 recorded calls" in run(*store, "--", "sh", "-c", "exit 3").stderr
    shown = ["--", "sh", "-c", 'echo "$OPENAI_API_KEY"; exit 3']
    assert run(*store, *shown, env={"OPENAI_API_KEY": ""}).stdout == f"{PLACEHOLDER_KEY}\n"
    keyless = run("--mode", "auto", *store, *shown, env={"OPENAI_API_KEY": ""}).stderr
    assert "  Not set: OPENAI_API_KEY. In replay a placeholder stood in; this run asks the provider" in keyless
    assert "--intercept" not in keyless
    warm = run("--mode", "record", *store, "--", "true").stderr
    assert "FEWER CALLS THAN THE LAST TIME: 0 recorded, and 2 before in cassette default." in warm
    assert "NEVER USED" not in warm


def test_a_file_of_the_cassette_that_no_option_names_is_pointed_out(tmp_path: Path) -> None:
    """A fresh clone has tests/cassettes and no store; what is printed for it replays when it is typed. Another cassette is recorded."""
    folder = ["--cassette-dir", "tests/cassettes"]
    with Provider([step(user="hi", say="hello")]) as provider:
        assert run("--mode", "record", *folder, "--", *asking("hi"), env=at(provider), cwd=tmp_path).returncode == 0
    for each in tmp_path.glob("llmproxy.db*"):
        each.unlink()
    missed = run("--", *asking("hi"), cwd=tmp_path).stderr
    assert "tests/cassettes/default.yaml is there, and was not read. Replay it: llmproxy run" in missed
    typed = missed.partition("Replay it: llmproxy run ")[2].partition(" -- COMMAND")[0].split()
    assert run(*typed, "--", *asking("hi"), cwd=tmp_path).stdout == "hello\n"
    for each in tmp_path.glob("llmproxy.db*"):
        each.unlink()
    assert "Record what is missing: " in run("--cassette", "other", "--", *asking("hi"), cwd=tmp_path).stderr


SEEDED = ASK.replace('"messages"', '"seed": int(os.environ["SEED"]), "messages"')


@pytest.mark.slow
@pytest.mark.parametrize("bind", [[], ["--bind", "none"]], ids=["bound", "unbound"])
def test_own_rules_are_one_for_every_command(bind: list[str], tmp_path: Path) -> None:
    """`ignore` is added after a recording with another seed: run, verify and audit say that it is the same question."""
    store = ["--store", str(tmp_path / "x.db")]
    command = [python(), "-c", SEEDED, "hi"]
    with Provider([step(user="hi", say="hello")]) as provider:
        env = {"OPENAI_BASE_URL": provider.url + "/v1", "OPENAI_API_KEY": "sk-mine", "SEED": "1"}
        assert run("--mode", "record", *store, "--", *command, env=env, cwd=tmp_path).returncode == 0
    strict = ["--mode", "replay", "--strict", *bind, *store, "--", *command]
    assert run(*strict, env={"SEED": "2"}, cwd=tmp_path).returncode == 4
    (tmp_path / "pyproject.toml").write_text('[tool.llmproxy.normalize]\nignore = ["$.seed"]\n')
    done = run(*strict, env={"SEED": "2"}, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    assert "bound" not in done.stderr
    for each, told in (
        ("verify", "Replay derives today's keys whenever it opens their cassette."),
        ("audit", "a rule of yours: [tool.llmproxy.normalize]"),
    ):
        assert told in llmproxy(each, *store, cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("words", "code"),
    [(["nosuch-command"], 127), (["--mode", "x", "true"], 2), ([], 2), (["--no-base-urls", "true"], 2)],
)
def test_nothing_is_started_for_what_cannot_run(words: list[str], code: int, tmp_path: Path) -> None:
    """The message comes at once, and no file is made."""
    done = run(*words, cwd=tmp_path)
    assert done.returncode == code
    assert done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_child_that_a_signal_ended_has_a_shell_s_code(px: Proxy) -> None:
    """128 + n."""
    assert run_at(px, "sh", "-c", "kill -KILL $$").returncode == 137


def test_a_signal_reaches_the_child_first_and_the_proxy_serves_until_it_ended(tmp_path: Path) -> None:
    """A child that cleans up may still ask its model."""
    ready = tmp_path / "ready"
    code = f"""
import pathlib, signal, sys, time
def stop(*_):
    raise SystemExit
signal.signal(signal.SIGTERM, stop)
try:
    pathlib.Path({str(ready)!r}).touch()
    time.sleep(300)
finally:
    sys.argv = ["", "last words"]
    exec({ASK!r})
    sys.exit(9)
"""
    words = [*RUN, "--store", str(tmp_path / "x.db"), sys.executable, "-c", code]
    with subprocess.Popen(
        words, env=clean_env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as popen:
        while not ready.exists() and popen.poll() is None:
            time.sleep(0.02)
        os.kill(popen.pid, signal.SIGTERM)
        out, err = popen.communicate(timeout=120)
    assert (popen.returncode, out) == (9, "HTTP 404\n")
    assert "1 miss" in err


TERMINAL = """
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
said = b""
while True:
    try:
        read = os.read(terminal, 1000)
    except OSError:
        break
    if not read:
        break
    said += read
    if b"ready" in said and b"sent" not in said:
        os.write(terminal, b"\\x03")
        said += b"sent"
print(said.decode().replace("\\r", ""), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_ctrl_c_at_a_terminal_reaches_the_child_once_and_not_the_proxy(tmp_path: Path) -> None:
    """The terminal sends it to all; forwarding it again would cut short what the child still has to do."""
    code = """
import signal, time
heard = []
signal.signal(signal.SIGINT, lambda *_: heard.append(1))
print("ready", flush=True)
end = time.monotonic() + 100
while not heard and time.monotonic() < end:
    time.sleep(0.02)
time.sleep(0.3)
print("heard", len(heard), flush=True)
raise SystemExit(6)
"""
    words = [*RUN, "--store", str(tmp_path / "x.db"), sys.executable, "-c", code]
    terminal = [sys.executable, "-c", TERMINAL, *words]
    done = subprocess.run(terminal, env=clean_env(), capture_output=True, text=True, timeout=60, check=False)
    assert "heard 1\n" in done.stdout, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith(" 6")


def intercepted(tmp_path: Path, *command: str, options: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    words = ["--store", str(tmp_path / "x.db"), "--intercept", "--no-base-urls", "--cassette", "a/b c", *options]
    words += ["--", *command]
    return run(*words, env={"XDG_DATA_HOME": str(tmp_path / "data")})


def test_a_client_whose_base_url_cannot_change_is_intercepted(tmp_path: Path) -> None:
    """By the session of the run, with nothing but variables, and no name was looked up."""
    if shutil.which("curl") is None:
        needed("curl")
    done = intercepted(tmp_path, "curl", "-sS", "https://api.openai.com/v1/models")
    assert "no recorded response for this request (openai models)" in done.stdout, done.stderr
    assert "0 hits, 1 miss, 0 recorded  (replay, cassette a/b c)" in done.stderr


@pytest.mark.slow
def test_a_host_that_was_refused_is_named_with_what_allows_it(tmp_path: Path) -> None:
    """A tunnel belongs to no session: without the name nobody could tell why the agent's tool failed, nor what to type."""
    code = """
import httpx
for url in ("https://tools.example.com/x", "http://tools.example.com/y"):
    try:
        print(httpx.get(url).status_code)
    except httpx.HTTPError as error:
        print(type(error).__name__)
"""
    done = intercepted(tmp_path, python(), "-c", code)
    assert "refused: CONNECT tools.example.com:443: in replay nothing leaves the machine" in done.stderr, done.stderr
    assert "refused: GET http://tools.example.com/y: tools.example.com is not in the provider table" in done.stderr
    assert done.stderr.count("--allow-host tools.example.com") == 2


def test_who_was_only_refused_never_used_the_proxy(tmp_path: Path) -> None:
    """A tunnel to a host that may not be reached certifies nothing."""
    code = "import httpx\ntry: httpx.get('https://tools.example.com/x')\nexcept httpx.HTTPError: pass"
    done = intercepted(tmp_path, python(), "-c", code, options=["--fail-on-miss"])
    assert done.returncode == 4
    assert "THE COMMAND NEVER USED THE PROXY but for what was refused" in done.stderr
    assert "exit code 4 because of --fail-on-miss: no request came but what was refused." in done.stderr


@pytest.mark.slow
def test_java_is_intercepted_by_options_of_its_own(tmp_path: Path) -> None:
    if shutil.which("java") is None or shutil.which("keytool") is None:
        needed("java", "java")
    (tmp_path / "Ask.java").write_text(
        "import java.net.*; import java.net.http.*;\n"
        "public class Ask { public static void main(String[] a) throws Exception { System.out.println(HttpClient.newHttpClient()"
        '.send(HttpRequest.newBuilder(URI.create("https://api.openai.com/v1/models")).build(), '
        "HttpResponse.BodyHandlers.ofString()).body()); } }"
    )
    assert "no recorded response" in intercepted(tmp_path, "java", str(tmp_path / "Ask.java")).stdout


def test_a_running_proxy_is_used_and_left_running(tmp_path: Path) -> None:
    """LLMPROXY_URL names it; options that only a start can obey are refused."""
    with proxy("replay", tmp_path / "x.db") as px:
        env = {"LLMPROXY_URL": px.url}
        done = run("--cassette", "mine", *asking("hi"), env=env)
        assert done.stdout == "HTTP 404\n"
        assert "0 hits, 1 miss, 0 recorded  (replay, cassette mine)" in done.stderr
        assert px.control("sessions")["sessions"] == []
        refused = run("--store", "y.db", "true", env=env)
        assert (refused.returncode, "--store: LLMPROXY_URL is set" in refused.stderr) == (2, True)
        assert run("--mode", "record", "true", env=env).returncode != 0
    assert run("true", env={"LLMPROXY_URL": f"http://127.0.0.1:{free_port()}"}).returncode == 3


@pytest.mark.slow
def test_a_gateway_is_the_upstream_of_a_running_proxy_too(tmp_path: Path) -> None:
    """Its key must never reach the public host."""
    with Provider([step(user="hi", say="hello")]) as provider, proxy("record", tmp_path / "x.db") as px:
        env = {"LLMPROXY_URL": px.url, "OPENAI_BASE_URL": provider.url + "/v1"}
        done = run("--cassette", "mine", *asking("hi"), env=env)
        assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr


@pytest.mark.slow
def test_a_child_can_run_a_child(tmp_path: Path) -> None:
    """The inner one uses the proxy of the outer one, in a session of its own."""
    words = [*RUN, "--cassette", "inner", *asking("hi")]
    done = run("--store", str(tmp_path / "x.db"), "--cassette", "outer", *words)
    assert (done.returncode, done.stdout) == (0, "HTTP 404\n"), done.stderr
    assert "cassette inner" in done.stderr
    assert "NEVER USED" not in done.stderr


@pytest.mark.slow
def test_verbose_shows_what_the_proxy_said(tmp_path: Path) -> None:
    """One line per request, and how it was started."""
    done = run("--verbose", "--store", str(tmp_path / "x.db"), *asking("hi"))
    assert "MISS" in done.stderr
    assert "mode replay" in done.stderr


@pytest.mark.slow
def test_a_proxy_that_dies_on_the_way_is_said(tmp_path: Path) -> None:
    """The child's answers are not ours any more."""
    code = """
import os, socket, subprocess, time, urllib.parse
os.kill(int(subprocess.check_output(["pgrep", "-n", "-f", "llmproxy start.*" + os.environ["MARK"]])), 9)
proxy = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
for _ in range(600):  # a minute: what was killed may be what started it
    with socket.socket() as tried:
        if tried.connect_ex((proxy.hostname, proxy.port)):
            break
    time.sleep(0.1)
"""
    mark = str(tmp_path / "x.db")
    done = run("--store", mark, sys.executable, "-c", code, env={"MARK": mark})
    assert done.returncode == 3, done.stderr
    assert "the proxy did not end the session" in done.stderr
