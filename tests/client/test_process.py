"""How the proxy is called, started and ended, and the command that works with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

import llmproxy
from llmproxy.client.proxy_process import (
    CommandNotFound,
    LlmproxyInstallationProbe,
    ProxyHandle,
    ProxyStartCommandLine,
    begin_proxy_start,
    ensure_proxy,
    find_command_path,
    find_proxy_command,
    read_llmproxy_url,
    run_child,
)
from llmproxy.errors import MachineError
from tests.support.process import clean_env, lives, until

SERVES, CANNOT = llmproxy.__version__, ""


def look(
    versions: Mapping[str, str] | None = None, tools: Sequence[str] = (), *, mitmproxy: bool = False
) -> LlmproxyInstallationProbe:
    """Make a machine: what the programs named ``llmproxy`` on PATH, or a tool offline, say they are."""
    said = dict(versions or {})

    def on_path(_path: str) -> Iterator[str]:
        yield from (name for name in said if " " not in name)

    def ask(words: Sequence[str], _env: Mapping[str, str]) -> str:
        return said.get(" ".join(words[:2]), "")

    def which(name: str, _path: str) -> str | None:
        return f"/bin/{name}" if name in tools else None

    return LlmproxyInstallationProbe(
        lambda _module: mitmproxy, on_path, which, ask, package=lambda extra: f"llmproxy-replay[{extra}]"
    )


@pytest.mark.parametrize(
    ("env", "machine", "words", "notice"),
    [
        ({"LLMPROXY_COMMAND": "'/opt/my proxy/llmproxy' --x"}, look(mitmproxy=True), ("/opt/my proxy/llmproxy", "--x"), ""),
        ({}, look({"/x/llmproxy": SERVES}, ["uvx"], mitmproxy=True), (sys.executable, "-m", "llmproxy"), ""),
        ({}, look({"/here/llmproxy": CANNOT, "/tool/llmproxy": SERVES, "/z/llmproxy": SERVES}, ["uvx"]),
         ("/tool/llmproxy",), ""),
        ({}, look({"/tool/llmproxy": "9.1"}), ("/tool/llmproxy",),
         f"the proxy is llmproxy 9.1 (/tool/llmproxy), while {llmproxy.__version__} asks it"),
        ({}, look({"/bin/uvx --offline": SERVES}, ["uvx"]),
         ("/bin/uvx", "--offline", "--from", "llmproxy-replay[proxy]", "llmproxy"), ""),
    ],
    ids=["the variable first", "then this environment", "then the first on PATH that serves", "another version is said",
         "what uvx has, without a network"],
)  # fmt: skip
def test_what_is_there_already_comes_before_a_download(
    env: dict[str, str], machine: LlmproxyInstallationProbe, words: tuple[str, ...], notice: str
) -> None:
    """In this order: whoever says where it is knows best, and nothing is installed that is there already."""
    found = find_proxy_command(env, machine)
    assert (found.words, found.notice) == (words, notice)
    assert ("on PATH" in found.source) == (words == ("/tool/llmproxy",))


@pytest.mark.parametrize(("tool", "words"), [
    ("uvx", ("/bin/uvx", "--from", "llmproxy-replay[proxy]", "llmproxy")),
    ("pipx", ("/bin/pipx", "run", "--spec", "llmproxy-replay[proxy]", "llmproxy")),
])  # fmt: skip
def test_a_download_is_announced_with_what_avoids_it(tool: str, words: tuple[str, ...]) -> None:
    """An offline run hangs at most after it has said why."""
    found = find_proxy_command({}, look(tools=[tool]))
    assert found.words == words
    assert f"`{tool} " in found.notice
    assert "may download" in found.notice
    assert "LLMPROXY_COMMAND" in found.notice
    assert found.patience > 100


def test_where_nothing_helps_it_says_what_to_install() -> None:
    with pytest.raises(MachineError, match="pip install 'llmproxy-replay") as error:
        find_proxy_command({}, look({"/here/llmproxy": CANNOT}))
    assert "LLMPROXY_COMMAND" in str(error.value)


def test_the_path_is_really_looked_through(tmp_path: Path) -> None:
    """Programs in its order, each once; those that break, hang about or say nothing are passed over."""
    versions = {"llmproxy": SERVES, "mitmproxy": "12.2.3"}
    texts = {"broken": "exit 1", "silent": "exit 0", "old": "echo 'llmproxy 0.1 (mitmproxy 12)'"}
    texts |= {"bare": f"echo '{json.dumps(versions | {'mitmproxy': None})}'", "good": f"echo '{json.dumps(versions)}'"}
    for name, text in texts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "llmproxy").write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name / "llmproxy").chmod(0o755)
    path = ":".join(str(tmp_path / name) for name in ("nosuch", *texts, "good"))
    found = find_proxy_command({"PATH": f":{path}"}, LlmproxyInstallationProbe(installed=lambda _module: False))
    assert found.words == (str(tmp_path / "good" / "llmproxy"),)
    assert list(LlmproxyInstallationProbe().on_path(path)) == [str(tmp_path / name / "llmproxy") for name in texts]


HERE = ProxyStartCommandLine((sys.executable, "-m", "llmproxy"), "this environment")


def test_it_serves_on_a_free_port_and_ends_when_asked(tmp_path: Path) -> None:
    """Two at once have two ports; quiet settings do not hide the address."""
    env = clean_env({"LLMPROXY_QUIET": "1", "LLMPROXY_URL": "http://other", "LLMPROXY_COMMAND": "other"})
    both = [
        begin_proxy_start(HERE, ["--store", str(tmp_path / f"{n}.db")], env, log=tmp_path / f"{n}.log")
        for n in range(2)
    ]
    assert len({proxy.wait_ready() for proxy in both}) == 2
    assert {proxy.control.health().mode for proxy in both} == {"replay"}
    assert [proxy.end() for proxy in both] == [0, 0]
    assert not any(proxy.is_alive for proxy in both)


@pytest.mark.slow
def test_one_that_cannot_start_says_why(tmp_path: Path) -> None:
    """Its own words for the user are the error, with nothing around them; how it was called only if it is another program."""
    (tmp_path / "x.db").write_text("this is no database, and long enough to be read as one " * 20)
    proxy = begin_proxy_start(HERE, ["--store", str(tmp_path / "x.db")], clean_env(), log=tmp_path / "log")
    with pytest.raises(MachineError, match=r"^(?!the proxy|llmproxy: |(.|\n)*-m llmproxy)(.|\n)*x\.db"):
        proxy.wait_ready()


def test_one_that_never_serves_is_given_up(tmp_path: Path) -> None:
    """With how long it was waited for, and that it said nothing."""
    proxy = begin_proxy_start(
        ProxyStartCommandLine(("sh", "-c", "exec sleep 600"), "a test", patience=0.2),
        [],
        clean_env(),
        log=tmp_path / "log",
    )
    with pytest.raises(
        MachineError,
        match=r"the proxy does not serve after 0\.2 s:\n\(it said nothing\)\nIt was called as (.|\n)*\(a test\)",
    ):
        proxy.wait_ready()
    assert not proxy.is_alive


def test_a_command_that_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A stale LLMPROXY_COMMAND; what should be read first, as that something is downloaded, stands before it."""
    missing = ProxyStartCommandLine(("/nosuch/llmproxy",), "LLMPROXY_COMMAND", notice="it downloads")
    with pytest.raises(MachineError, match=r"cannot start the proxy: /nosuch/llmproxy(.|\n)*LLMPROXY_COMMAND"):
        begin_proxy_start(missing, [], clean_env(), log=tmp_path / "log")
    assert capsys.readouterr().err == "llmproxy: it downloads\n"


def test_it_ends_when_its_owner_is_killed(tmp_path: Path) -> None:
    """A crashed test run leaves no proxy behind."""
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom llmproxy.client.proxy_process import ProxyStartCommandLine\nfrom llmproxy.client.proxy_process import begin_proxy_start\nimport os\n"
        "p = begin_proxy_start(ProxyStartCommandLine((sys.executable, '-m', 'llmproxy'), ''), ['--store', sys.argv[1]], os.environ, log=Path(sys.argv[2]))\n"
        "p.wait_ready()\nprint(p.popen.pid, flush=True)\ntime.sleep(60)"
    )
    words = [sys.executable, "-c", script, str(tmp_path / "x.db"), str(tmp_path / "log")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=clean_env()) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        owner.send_signal(signal.SIGKILL)
    until(lambda: not lives(pid), 15)


def test_one_that_was_started_ends_with_the_block(tmp_path: Path) -> None:
    seen: list[ProxyHandle] = []

    def fail(found: ProxyHandle) -> None:
        seen.append(found)
        assert found.control.health().mode == "replay"
        raise KeyError

    with pytest.raises(KeyError), ensure_proxy(["--store", str(tmp_path / "x.db")], clean_env()) as found:
        fail(found)
    process = seen[0].process
    assert process is not None
    assert not process.is_alive
    assert not process.log.exists()


def test_no_address_is_none() -> None:
    """An empty variable is as good as none; a slash at the end says nothing."""
    assert read_llmproxy_url({"LLMPROXY_URL": " "}) == ""
    assert read_llmproxy_url({"LLMPROXY_URL": "http://a:1/"}) == "http://a:1"


ENV = dict(os.environ)


def test_a_signal_to_us_reaches_it_and_our_handlers_come_back(tmp_path: Path) -> None:
    """A supervisor ends us; the child ends in its own way."""
    ready = tmp_path / "ready"
    code = (
        "import signal, sys, time, pathlib\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        f"pathlib.Path({str(ready)!r}).touch()\n"
        "time.sleep(20)"
    )

    def knock() -> None:
        while not ready.exists():
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    threading.Thread(target=knock).start()
    assert run_child([sys.executable, "-c", code], ENV) == 5
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_command_that_is_not_there_is_127(tmp_path: Path) -> None:
    """As in a shell; before a proxy is started."""
    plain = tmp_path / "plain.txt"
    plain.write_text("no program")
    for word, said, code in (("nosuch", "nosuch: command not found", 127), (str(plain), "cannot be executed", 126)):
        with pytest.raises(CommandNotFound, match=said) as error:
            find_command_path([word], ENV)
        assert error.value.exit_code == code
    with pytest.raises(CommandNotFound, match="as words"):
        find_command_path(["npm test"], ENV)


def test_it_is_looked_for_on_its_own_path(tmp_path: Path) -> None:
    """The child's PATH counts."""
    program = tmp_path / "mine"
    program.write_text("#!/bin/sh\nexit 4\n")
    program.chmod(0o755)
    assert find_command_path(["mine"], {**ENV, "PATH": str(tmp_path)}) == str(program)
