"""Every command that the product prints is found here by itself: it is made in one of two places, which keep what was typed, or says why not.

A text that names ``llmproxy why`` without the store, or ``llmproxy start`` without the upstream, does something else than it says when it is
typed: it looks into another store, or sends a gateway's key to the provider's public host.
`advice.format_llmproxy_command` keeps the store, `advice.SuggestedCommandTemplate` everything. What is written by hand stands in `BY_HAND`, with the reason why there is
nothing to keep.
"""

from __future__ import annotations

import ast
import functools
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from llmproxy.advice import (
    EXTRAS,
    LONGEST,
    NAME,
    SuggestedCommandTemplate,
    build_missing_extra_error,
    build_pip_requirement,
    choose_install_command,
    describe_how_to_upgrade_llmproxy,
    find_reinstall_url,
    format_llmproxy_command,
    format_store_option,
)
from llmproxy.cli import COMMANDS
from llmproxy.core.providers.upstreams_and_rate_limits import add_env_upstreams
from llmproxy.mitm.serve import build_proxy_restart_command
from llmproxy.settings import Loaded, list_options_of_settings, load

PACKAGE = Path(__file__).resolve().parents[1] / "llmproxy"
NOTHING_TO_KEEP = frozenset(
    {"addon", "cache", "demo", "doctor", "env", "faults", "judge", "label", "mcp", "settings", "suite", "test", "ui"}
)
"""Commands that neither read the store of the advice nor record, and `test`, whose runs say themselves how they were started."""
MADE = re.compile(rf"\bllmproxy ({'|'.join(sorted(set(COMMANDS) - NOTHING_TO_KEEP, key=len, reverse=True))})\b")
DESCRIBES = frozenset({"help", "description", "epilog", "metavar"})
"""Arguments that describe an option or a command: nothing has happened yet that advice could keep."""
BY_HAND = {
    "cli/demo.py": "how one begins, in a folder of one's own, and goes on with an agent of one's own",
    "cli/settings_faults_addon.py": "how kinds and presets are written, with KIND in their places",
    "cli/maintenance.py": "the store stands in {store}; paths of files in its way of writing",
    "client/control.py": "whoever asks a proxy that is not there has named no store",
    "cli/doctor.py": "for any command of the shell that is examined, whose own proxy it is",
    "client/bypass_monitor.py": "what `run` can do for a language",
    "client/tools/agent_mcp_servers.py": "the name of the command that starts the agent already, and how it is given tools",
    "client/proxy_process.py": "how a command is written as words",
    "core/faults/parsing.py": "how faults are written; a rule was refused before anything ran",
    "core/providers/upstreams_and_rate_limits.py": "another way to record altogether, under interception",
    "core/store/file/connect.py": "sqlite_file puts the path in, quoted, as {typed}",
    "mitm/serve.py": "who has the port is asked by its address",
    "mitm/addon.py": "instead of mitmproxy, with options of its own",
    "postgres_store_paths.py": "where the server is was said with its password, which no text repeats",
    "core/ws_replay.py": "123 bytes of a close frame; the miss itself names the store",
    "advice.py": "the names of the commands themselves",
    "core/misses/explain.py": "the name of the command that `by` completes",
    "cli/parts/options.py": "the name of the command that `SuggestedCommandTemplate` completes",
    "cli/parts/import_files.py": "who holds the store while it writes",
    "cli/rerecord.py": "who holds the store while it writes",
    "cli/replay.py": "the name of the command, in a refusal and before `SuggestedCommandTemplate`",
    "cli/learn.py": "the name of the command that starts a proxy",
    "cli/run.py": "an example with another model",
    "cli/parts/run_ending.py": "the name of the command that `SuggestedCommandTemplate` completes, and what the command never used",
    "cli/parts/session_setup.py": "the name of the command around this one, and an option for either",
    "cli/parts/fault_sweep.py": "the name of the command, in a refusal",
    "core/sessions/exchange.py": "the name of the command that `by` completes",
    "scenario/cluster/remote_runner.py": "what the commands that a miss names look at: there is nothing to type",
    "cli/merge.py": "several stores are read, and their names typed",
    "core/cassettes/merging.py": "several stores, of which the text names the one that is meant, or the user chooses",
    "core/store/postgres/schema_and_leases.py": "the store stands in the text, without its password",
    "core/store/postgres/store.py": "where the server is was said with its password, which no text repeats",
    "pytest/options.py": "what options do",
    "settings.py": "what options do",
    "ui/page.py": "the name of the command, when the page itself broke",
    "trace/observing/tool_calls.py": "by what servers of tools are seen",
}
"""File -> why its texts keep nothing."""


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield every string that is no docstring and no description: (line, text), with {...} for what is put in."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
        if isinstance(node, ast.keyword) and node.arg in DESCRIBES:
            skipped.update(id(each) for each in ast.walk(node.value))
        if isinstance(node, ast.JoinedStr) and id(node) not in skipped:
            skipped.update(id(each) for each in node.values)
            yield (
                node.lineno,
                "".join(str(each.value) if isinstance(each, ast.Constant) else "{...}" for each in node.values),
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.lineno, node.value


@functools.cache
def found() -> dict[str, list[str]]:
    """Return the texts of the product that name such a command, by file."""
    where: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for at, text in texts(ast.parse(path.read_text("utf-8"))):
            if MADE.search(text):
                where.setdefault(path.relative_to(PACKAGE).as_posix(), []).append(f"{at}: {text[:160]}")
    return where


def test_no_command_is_printed_that_forgets_what_was_typed() -> None:
    """A new text with a command in it is made by `format_llmproxy_command` or `SuggestedCommandTemplate`, or says here why it keeps nothing."""
    assert {name: lines for name, lines in found().items() if name not in BY_HAND} == {}


def test_the_table_names_nothing_that_is_gone() -> None:
    """A reason without its text would hide the next one."""
    assert sorted(set(BY_HAND) - set(found())) == []


def test_a_text_is_found_in_whatever_form_it_is_written() -> None:
    """Plain, joined, with values, over lines; docstrings and help are none."""
    source = '''
"""llmproxy why: a docstring."""
a = "see llmproxy why"
b = f"llmproxy show {x} --store {y}"
c = ("then: "
     "llmproxy verify --rekey")
d = option(help="as of llmproxy start")
e = "llmproxy settings lists them"
'''
    hits = [text for _, text in texts(ast.parse(source)) if MADE.search(text)]
    assert hits == ["see llmproxy why", "llmproxy show {...} --store {...}", "then: llmproxy verify --rekey"]


@pytest.mark.parametrize("store", ["x.db", "a b.db", "it's.db", "-.db", "\x1b[31m.db"])
def test_a_store_of_any_name_is_typed_as_one_word(store: str) -> None:
    """Quoted, and without what moves a cursor; the default one needs no word."""
    words = shlex.split(format_llmproxy_command("show 12", store))
    assert words[:4] == ["llmproxy", "show", "12", "--store"]
    assert len(words) == 5
    assert "\x1b" not in format_llmproxy_command("why", store)
    assert (
        format_llmproxy_command("why", "llmproxy.db")
        == format_llmproxy_command("why", Path.cwd() / "llmproxy.db")
        == "llmproxy why"
    )


def test_a_command_beside_the_running_proxy_does_not_take_its_port() -> None:
    """It has a proxy of its own: upstream, folder and rules are kept, the address is not."""
    again = SuggestedCommandTemplate(
        options=(("port", "9"), ("host", "::"), ("upstream", "a=http://a"), ("cassette_dir", "c c"))
    )
    typed = again.for_other_command("llmproxy learn x").command("", store="s.db")
    assert typed == "llmproxy learn x --store s.db --upstream a=http://a --cassette-dir 'c c' -- COMMAND"


@pytest.mark.parametrize(("started_by", "typed"), [
    ("llmproxy run --var 'order=a b' --mcp-config t.json",
     "llmproxy changes --var 'order=a b' --mcp-config t.json --cassette c --cassette-dir d -- COMMAND"),
    ("LLMPROXY_MODE={mode} npx vitest run", "llmproxy changes --cassette-dir d -- npx vitest run"),
    ("pytest -x --llmproxy-mode {mode}", "pytest -x --llmproxy-changes"),
    ("llmproxy test shop.yaml --mode {mode}", "llmproxy test shop.yaml --changes"),
    ("", ""),
])  # fmt: skip
def test_changes_are_listed_of_the_command_that_was_typed(started_by: str, typed: str) -> None:
    """Its options are kept; a test of the npm package has a cassette of its own, which no other session may hold."""
    loaded = load({"port": "0", "allow_live": True, "cassette_dir": "d"}, {}, Path.cwd())
    again = build_proxy_restart_command(loaded, {"LLMPROXY_STARTED_BY": started_by})
    assert again.format_changes_command("c", "llmproxy.db") == typed


FLAGS: dict[str, object] = {
    "mode": "replay",
    "host": "0.0.0.0",
    "port": "9123",
    "store": "some where/x y.db",
    "cassette_dir": "cass ettes",
    "cassette": "a 'b'",
    "upstream": ["openai=https://gateway.corp/v1", "mine=http://gpu:8000/v1"],
    "speed": "2.5",
    "order_wait": "0.5",
    "max_age": "30d",
    "coalesce": False,  # for modes that record
    "max_cost": "0.50",
    "exhausted": "cycle",
    "faults_seed": "7",
    "forward": True,
    "token": "s3cret-token",
    "allow_host": ["*.example.com", "::1"],
    "stub": ["login.corp.example/*=token"],
    "record_host": ["api.example.com", "*"],
    "answer_to": ["proxy.lan"],
    "allow_origin": ["http://localhost:5173", "vscode-webview://*"],
    "allow_live": True,
    "read_only": ["get_*", "POST api.example.com/search*"],
    "client_cert": "my cert.pem",
    "rate": ["60/min", "openai=5/s"],
    "match_credential": True,
    "fail_on_miss": True,
    "miss_status": "501",
    "max_request": "1 MiB",
    "quiet": False,
    "strict": True,
    "verbose": True,
}
"""One value for each option, none of them the default where there is another."""


def parse(words: list[str]) -> dict[str, object]:
    """Read a command's flags back."""
    known, found = {option.flag: option for option in list_options_of_settings()}, dict[str, object]()
    rest = iter(words)
    for word in rest:
        if word.startswith("--no-") and word not in known:
            found[known[f"--{word[5:]}"].name] = False
        elif known[word].boolean:
            found[known[word].name] = True
        elif known[word].repeat:
            found.setdefault(known[word].name, []).append(next(rest))  # type: ignore[attr-defined]
        else:
            found[known[word].name] = next(rest)
    return found


def same(one: Loaded, other: Loaded, *but: str) -> None:
    """See that settings agree in all that a command keeps."""
    for option in list_options_of_settings():
        kept = (option.again and option.name not in but) or option.name in ("cassette", "store")
        if kept and not option.secret:
            assert getattr(one.settings, option.name) == getattr(other.settings, option.name), option.name


def test_every_option_is_known_here() -> None:
    """A new option has a value in the table above, so that it is kept or left out on purpose; a choice or a switch needs none."""
    choices = {
        each.name: True if each.boolean else each.metavar.split("|")[-1]
        for each in list_options_of_settings()
        if "|" in each.metavar or each.boolean
    }
    for name, value in choices.items():
        FLAGS.setdefault(name, value)
    assert {option.name for option in list_options_of_settings() if option.has_flag} <= set(FLAGS)


@pytest.mark.parametrize("name", [None, *FLAGS])
def test_a_command_typed_as_printed_starts_the_same_proxy(
    name: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = load(FLAGS if name is None else {name: FLAGS[name]}, {}, tmp_path)
    settings = loaded.settings
    store = str(settings.store.relative_to(tmp_path))
    printed = build_proxy_restart_command(loaded, {}).command("auto", settings.cassette, store=store)
    words = shlex.split(printed.partition("; ")[2] or printed)  # the running one is ended first
    assert words[:4] == ["llmproxy", "start", "--mode", "auto"]
    same(loaded, load(parse(words[2:]), {}, tmp_path))
    assert "s3cret" not in printed


@given(st.dictionaries(st.sampled_from(sorted(FLAGS)), st.none(), max_size=6))
def test_from_the_environment_too(chosen: dict[str, None]) -> None:
    """Who starts a proxy by hand may type the advice elsewhere: what LLMPROXY_ variables said is typed out."""
    env = {
        f"LLMPROXY_{name.upper()}": " ".join(value) if isinstance(value := FLAGS[name], list) else str(value).lower()
        for name in chosen
        if name not in ("cassette", "store", "cassette_dir", "max_request")
    }
    if {"LLMPROXY_QUIET", "LLMPROXY_VERBOSE"} <= set(env):
        del env["LLMPROXY_QUIET"]
    loaded = load({}, env, Path.cwd())
    typed = build_proxy_restart_command(loaded, env).command("auto")
    words = shlex.split(typed.partition("; ")[2] or typed)
    same(loaded, load(parse(words[2:]), {}, Path.cwd()), "cassette", "store")


def test_a_gateway_that_a_variable_names_is_kept_by_that_variable() -> None:
    """Its key must never go to the public host; a password in the address is not printed, and the command then fails instead."""
    env = {"OPENAI_BASE_URL": "https://gw.corp/v1", "ANTHROPIC_BASE_URL": "https://me:hunter2@gw.corp/a b"}
    loaded = add_env_upstreams(load({}, {}, Path.cwd()), env)
    assert build_proxy_restart_command(loaded, env).command("record") == (
        "llmproxy stop --url http://127.0.0.1:8080; OPENAI_BASE_URL=https://gw.corp/v1 ANTHROPIC_BASE_URL='https://USER:PASSWORD@gw.corp/a b' llmproxy start --mode record"
    )


def test_what_another_command_started_is_started_by_that_again() -> None:
    """`run` is typed in the same shell, whose variables are still set; the free port that it took is not the user's."""
    env = {
        "OPENAI_BASE_URL": "https://gw.corp/v1",
        "LLMPROXY_STARTED_BY": "llmproxy run --intercept",
        "LLMPROXY_SPEED": "1",
    }
    loaded = add_env_upstreams(load({"port": "0", "upstream": ["a=http://a/v1"]}, env, Path.cwd()), env)
    assert build_proxy_restart_command(loaded, env).command("auto", "c") == (
        "llmproxy run --intercept --mode auto --cassette c --upstream a=http://a/v1 -- COMMAND"
    )
    spawned = build_proxy_restart_command(loaded, env | {"LLMPROXY_STARTED_BY": ""})
    assert spawned.command("auto") == "llmproxy start --mode auto --upstream a=http://a/v1"


@pytest.mark.parametrize(("typed", "env", "page"), [
    ({}, {}, "http://127.0.0.1:8080/"),
    ({"port": "9123"}, {}, "http://127.0.0.1:9123/"),
    ({"port": "0"}, {}, ""),
    ({}, {"LLMPROXY_STARTED_BY": ""}, ""),
    ({}, {"LLMPROXY_STARTED_BY": "llmproxy run"}, ""),
])  # fmt: skip
def test_a_page_is_named_where_its_proxy_goes_on_and_its_port_is_freed_first(
    typed: dict[str, str], env: dict[str, str], page: str, tmp_path: Path
) -> None:
    """A proxy that somebody started, at its port, which the next one needs; what starts proxies of its own, such as the demo, ends them."""
    again = build_proxy_restart_command(load(typed, {}, tmp_path), env)
    assert again.page == page
    stop = f"llmproxy stop --url {page[:-1]}; " if page else ""
    assert again.command("auto").startswith(f"{stop}{again.start} --mode auto")
    assert "stop" not in again.for_other_command("llmproxy run").command("auto")


def test_inside_mitmproxy_options_are_set() -> None:
    """There is no `llmproxy start` there."""
    options = (("upstream", "a=http://a/v1"), ("forward", True))
    again = SuggestedCommandTemplate('mitmdump -s "$(llmproxy addon)"', "", options, in_mitmproxy=True)
    assert again.command("auto", "a b") == (
        "mitmdump -s \"$(llmproxy addon)\" --set llmproxy_mode=auto --set 'llmproxy_cassette=a b'"
        " --set llmproxy_upstream=a=http://a/v1 --set llmproxy_forward=true"
    )


def test_upstreams_of_a_session_are_named() -> None:
    """They were told to the session, and the proxy does not know them."""
    command = SuggestedCommandTemplate().command("auto", "c", upstreams={"openai": "https://gw.corp"})
    assert command == "llmproxy start --mode auto --cassette c --upstream openai=https://gw.corp"


def test_a_command_is_whole_or_says_that_it_is_not() -> None:
    """Cut in the middle of a gateway's name it would run, with another host."""
    again = SuggestedCommandTemplate(options=tuple(("allow_host", f"host-{n}.example.com") for n in range(99)))
    assert len(again.command("auto")) < LONGEST
    assert "... (and the options that it runs with" in again.command("auto")
    assert format_store_option("llmproxy.db") == ""
    assert format_store_option("a b.db") == " --store 'a b.db'"


GIT = {"url": "https://example.com/llmproxy.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}


def noted(url: str, **more: object) -> str:
    return json.dumps({"url": url} | more)


def test_a_clone_and_a_wheel_are_named_by_their_place(tmp_path: Path) -> None:
    """A blank in the path stays a URL's; `@` is what pip, uv and pipx all take."""
    clone = tmp_path / "my clone"
    clone.mkdir()
    (tmp_path / "x.whl").touch()
    for each in (clone, tmp_path / "x.whl"):
        assert build_pip_requirement(noted(each.as_uri()), "proxy", "mcp") == f"{NAME}[proxy,mcp] @ {each.as_uri()}"
    typed = f"uv tool install --force '{NAME} @ {clone.as_uri()}'   (or the same with pip install --force-reinstall)"
    assert describe_how_to_upgrade_llmproxy(noted(clone.as_uri())).endswith(typed)


def test_a_repository_is_named_with_its_revision() -> None:
    """The tag or branch that was asked for, else the commit."""
    assert find_reinstall_url(json.dumps(GIT)) == "git+https://example.com/llmproxy.git@abc"
    asked = {"vcs": "git", "commit_id": "abc", "requested_revision": "v1"}
    assert find_reinstall_url(json.dumps(GIT | {"vcs_info": asked})) == "git+https://example.com/llmproxy.git@v1"


@pytest.mark.parametrize(
    "told", ["", "[]", "{", "{}", noted("file:///nosuch/x.whl"), noted("https://me:secret@example.com/x.whl")]
)
def test_without_such_a_place_it_is_the_index_s_name(told: str) -> None:
    """From an index, a file that is gone, a URL with a password."""
    assert build_pip_requirement(told, "proxy") == f"{NAME}[proxy]"
    assert describe_how_to_upgrade_llmproxy(told) == f"uv tool upgrade {NAME}   (or pip install --upgrade {NAME})"


@pytest.mark.parametrize(("prefix", "installer", "editable", "typed"), [
    ("/home/u/.local/share/uv/tools/llmproxy-replay", "uv", False, "uv tool install --force '{}'"),
    ("/home/u/.local/pipx/venvs/llmproxy-replay", "pip", False, "pipx install --force '{}'"),
    ("/home/u/clone/.venv", "uv", True, "uv sync --inexact --extra mcp --extra proxy"),
    ("/home/u/app/.venv", "uv", False, "uv pip install '{}'"),
    ("/usr", "pip", False, "pip install '{}'"),
])  # fmt: skip
def test_an_extra_is_installed_as_this_package_was(prefix: str, installer: str, typed: str, *, editable: bool) -> None:
    """By the program that made the environment, beside the extras that are there."""
    package, told = f"{NAME}[mcp,proxy]", noted("file:///clone", dir_info={"editable": editable})
    assert choose_install_command(package, Path(prefix), installer, told) == typed.format(package)


@pytest.mark.parametrize("extra", sorted(set(EXTRAS.values())))
def test_what_is_missing_is_told_with_the_extra_that_brings_it(extra: str) -> None:
    """Each extra of the table is one of the package's; what is none of theirs stays an internal error."""
    assert extra in tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (module, *_) = [name for name, its in EXTRAS.items() if its == extra]
    said = build_missing_extra_error(ModuleNotFoundError("No module", name=f"{module}.sub"))
    assert said is not None
    assert f"package {module}," in str(said)
    assert extra in said.hint
    assert build_missing_extra_error(ModuleNotFoundError("No module", name="llmproxy.nothing")) is None


def test_what_a_command_says_to_type_again_takes_a_mode() -> None:
    """A miss adds `--mode auto` to it: commands that take no mode name `llmproxy run`."""
    sources = "".join(path.read_text("utf-8") for path in (PACKAGE / "cli").glob("*.py"))
    assert set(re.findall(r'started_by="llmproxy (\w+)"', sources)) == {"run"}
