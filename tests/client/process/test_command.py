"""How the proxy is called, told from what the machine has."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

import llmproxy
from llmproxy.client.process.command import Look, find_command
from llmproxy.errors import MachineError

SERVES = f"llmproxy {llmproxy.__version__} (mitmproxy 12.2.3)\n"
CANNOT = f"llmproxy {llmproxy.__version__} (without mitmproxy: it cannot serve)\n"


def look(versions: Mapping[str, str] | None = None, tools: Sequence[str] = (), *, mitmproxy: bool = False) -> Look:
    """Make a machine: what the programs named ``llmproxy`` on PATH, or a tool offline, say they are."""
    said = dict(versions or {})

    def on_path(_path: str) -> Iterator[str]:
        yield from (name for name in said if " " not in name)

    def ask(words: Sequence[str], _env: Mapping[str, str]) -> str:
        return said.get(" ".join(words[:2]), "")

    def which(name: str, _path: str) -> str | None:
        return f"/bin/{name}" if name in tools else None

    return Look(lambda _module: mitmproxy, on_path, which, ask, package=lambda extra: f"llmproxy-replay[{extra}]")


def test_the_variable_comes_first() -> None:
    """Whoever says where it is knows best."""
    env = {"LLMPROXY_COMMAND": "'/opt/my proxy/llmproxy' --x"}
    assert find_command(env, look(mitmproxy=True)).words == ("/opt/my proxy/llmproxy", "--x")


def test_this_environment_comes_before_all_others() -> None:
    """Nothing is asked, and nothing installed, that is there already."""
    found = find_command({}, look({"/x/llmproxy": SERVES}, ["uvx"], mitmproxy=True))
    assert (found.words, found.notice) == ((sys.executable, "-m", "llmproxy"), "")


def test_one_on_the_path_comes_before_tools_that_download() -> None:
    """The first that can serve: that of this environment is often the first of all, and cannot."""
    found = find_command({}, look({"/here/llmproxy": CANNOT, "/tool/llmproxy": SERVES, "/z/llmproxy": SERVES}, ["uvx"]))
    assert (found.words, found.source, found.notice) == (("/tool/llmproxy",), "/tool/llmproxy on PATH", "")


def test_one_of_another_version_is_used_and_said() -> None:
    """A store that it migrates can be too new for us."""
    found = find_command({}, look({"/tool/llmproxy": "llmproxy 9.1 (mitmproxy 12.2.3)"}))
    assert found.words == ("/tool/llmproxy",)
    assert found.notice == f"the proxy is llmproxy 9.1 (/tool/llmproxy), while {llmproxy.__version__} asks it"


def test_what_uvx_has_already_is_used_without_a_network() -> None:
    """Offline is forced, so nothing can be downloaded behind the user's back."""
    found = find_command({}, look({"/bin/uvx --offline": SERVES}, ["uvx"]))
    assert found.words == ("/bin/uvx", "--offline", "--from", "llmproxy-replay[proxy]", "llmproxy")
    assert found.notice == ""


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ("uvx", ("/bin/uvx", "--from", "llmproxy-replay[proxy]", "llmproxy")),
        ("pipx", ("/bin/pipx", "run", "--spec", "llmproxy-replay[proxy]", "llmproxy")),
    ],
)
def test_a_download_is_announced_with_what_avoids_it(tool: str, words: tuple[str, ...]) -> None:
    """An offline run hangs at most after it has said why."""
    found = find_command({}, look(tools=[tool]))
    assert found.words == words
    assert f"`{tool} " in found.notice
    assert "may download" in found.notice
    assert "LLMPROXY_COMMAND" in found.notice
    assert found.patience > 100


def test_where_nothing_helps_it_says_what_to_install() -> None:
    """An error that is a manual."""
    with pytest.raises(MachineError, match="uv tool install 'llmproxy-replay") as error:
        find_command({}, look({"/here/llmproxy": CANNOT}))
    assert "LLMPROXY_COMMAND" in str(error.value)


def test_the_path_is_really_looked_through(tmp_path: Path) -> None:
    """Programs in its order, each once; those that break, hang about or say nothing are passed over."""
    texts = {"broken": "exit 1", "silent": "exit 0", "good": f"echo '{SERVES.strip()}'"}
    for name, text in texts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "llmproxy").write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name / "llmproxy").chmod(0o755)
    path = ":".join(str(tmp_path / name) for name in ("nosuch", *texts, "good"))
    found = find_command({"PATH": f":{path}"}, Look(installed=lambda _module: False))
    assert found.words == (str(tmp_path / "good" / "llmproxy"),)
    assert list(Look().on_path(path)) == [str(tmp_path / name / "llmproxy") for name in texts]
