"""``llmproxy env``."""

from __future__ import annotations

import json
import subprocess
from functools import partial
from pathlib import Path

import pytest

from llmproxy.cli.env import render_assignments
from tests.support.forked import program
from tests.support.process import clean_env, free_port, llmproxy
from tests.support.proxy import Proxy, proxy

ENV = (*program("llmproxy"), "env")


run = partial(llmproxy, "env")


def test_a_shell_that_evaluates_it_uses_the_proxy(px: Proxy) -> None:
    """Base URLs with the session, a key for SDKs that insist on one, and NO_PROXY."""
    command = f'eval "$({" ".join(ENV)} --url {px.url} --session "my test")"; echo "$OPENAI_BASE_URL $OPENAI_API_KEY $NO_PROXY"'
    done = subprocess.run(
        ["sh", "-c", command], env=clean_env(), capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"{px.url}/s/my%20test/v1 llmproxy-placeholder 127.0.0.1,localhost,::1\n"


def test_it_finds_the_proxy_where_start_would_listen(px: Proxy) -> None:
    """By LLMPROXY_URL, or by the same settings as `llmproxy start`."""
    for env in ({"LLMPROXY_URL": px.url}, {"LLMPROXY_PORT": str(px.port), "LLMPROXY_HOST": "0.0.0.0"}):
        assert json.loads(run("--format", "json", env=env).stdout)["ANTHROPIC_BASE_URL"] == f"{px.url}/anthropic"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--format", "cmd"], 2, "sh, fish, powershell, dotenv, json"),
        (["--url", "http://127.0.0.1:9"], 3, "no llmproxy answers"),
    ],
)
def test_what_goes_wrong_is_said_on_stderr_only(words: list[str], code: int, said: str) -> None:
    """Whatever stands on stdout is evaluated by a shell."""
    done = run(*words)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr


def test_a_proxy_that_does_not_intercept_gives_no_such_variables(tmp_path: Path) -> None:
    """Half of them would break every HTTPS connection of the shell."""
    with proxy("replay", tmp_path / "x.db") as px:
        if px.control("health").get("ca"):
            done = run("--url", px.url, "--intercept", "--format", "json")
            assert Path(json.loads(done.stdout)["SSL_CERT_FILE"]).is_file()
        else:
            done = run("--url", px.url, "--intercept")
            assert (done.returncode, done.stdout) == (3, "")


def test_nobody_there_is_an_error() -> None:
    done = run(env={"LLMPROXY_PORT": str(free_port())})
    assert (done.returncode, done.stdout) == (3, "")


ODD = {"A": 'it\'s $HOME `x` "y" \\', "B": "http://127.0.0.1:1/s/a%20b/v1"}


def test_a_shell_reads_back_what_was_written() -> None:
    """Nothing in a value is executed or expanded."""
    script = render_assignments(ODD, "sh") + '\nprintf \'%s|%s\' "$A" "$B"'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == f"{ODD['A']}|{ODD['B']}"


@pytest.mark.parametrize(
    ("form", "value", "text"),
    [
        ("fish", "it's", "set -gx A 'it\\'s';"),
        ("powershell", "it's", "$env:A = 'it''s'"),
        ("dotenv", "it's", 'A="it\'s"'),
        ("dotenv", ODD["B"], f"A='{ODD['B']}'"),
    ],
)
def test_each_form_quotes_in_its_own_way(form: str, value: str, text: str) -> None:
    """An apostrophe is the test of every quoting; else dotenv takes single quotes, which are literal to all readers."""
    assert render_assignments({"A": value}, form) == text


def test_json_is_an_object() -> None:
    assert json.loads(render_assignments(ODD, "json")) == ODD
