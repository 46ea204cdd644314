"""A rewritten command means to a real shell what the recorded one meant, in this run's folder; what cannot is a miss."""

from __future__ import annotations

import json
import subprocess

import pytest

from llmproxy.core.bindings import Bindings, Fit, Misfit, Mismatch, RunVariable, rewrite_answer
from llmproxy.core.bindings.answer_rewriting import is_in_code_block, keeps_shell_quoting
from llmproxy.core.traffic.interaction import Chunk, Response

COMMANDS = (
    "printf '%s|' @", "printf '%s|' @/x '@/y'", 'printf "%s|" "@/a file"', "printf '%s|' 'x'@/y", 'printf "%s|" "in":@',
    "sh -c \"printf '%s|' '@/x'\"", "sh -c 'printf %s\\| @'", "printf '%s|' x'=@'", "eval \"printf '%s|' @\"", "printf '%s|' \\\"@\\\"",
    "printf '%s|' \"$(printf %s @)\"", "cat <<END\n@\nEND", "printf '%s|' \"it's @\"", "printf '%s|' # '@", "printf '%s|' $'@'",
    "bash -lc 'printf %s\\| \"@/x\"'", "A=@; printf '%s|' \"$A\"", "printf '%s|' \"@\"*",
)  # fmt: skip
"""With an at sign where the folder stands."""
HERE = "/nowhere/at/all"
FOLDERS = (
    "/srv/plain", "/srv/my work", "/srv/it's", '/srv/say "hi"', "/srv/$HOME", "/srv/`id`", "/srv/a;b", "/srv/a*", "/srv/{a,b}", "/srv/back\\slash",
    "/srv/größe", "/srv/ünï cödé 🛶", "/srv/[ab]", "/srv/a&b|c", "/srv/(x)", "/srv/~a", "/srv/a#b", "/srv/a!b", "/srv/a\nb", "/srv/$(id)",
)  # fmt: skip


def rewritten(command: str, recorded: str, present: str) -> str | Mismatch:
    """Return a recorded tool call's command as this run gets it."""
    call = {"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": command}}
    body = json.dumps({"type": "message", "role": "assistant", "content": [call]}).encode()
    bindings = Bindings([RunVariable("cwd", recorded)], [RunVariable("cwd", present)])
    headers = (("content-type", "application/json"),)
    got = rewrite_answer(bindings, Fit((), ()), Response(200, "OK", headers, (Chunk(0, body),)))
    return got if isinstance(got, Mismatch) else str(json.loads(got.body)["content"][0]["input"]["command"])


def said(command: str) -> str:
    """Run a command in a shell; return what it prints, and how it ended."""
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, cwd="/")
    return f"{done.stdout} {done.returncode} {bool(done.stderr)}"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_shell_reads_a_rewritten_command_as_it_read_the_recorded_one(command: str) -> None:
    """For each folder: what is printed names this run's folder where it named the recorded one, and nothing was run besides."""
    before = said(command.replace("@", HERE))
    served = []
    for folder in FOLDERS:
        got = rewritten(command.replace("@", HERE), HERE, folder)
        if isinstance(got, Mismatch):
            assert got.why is Misfit.QUOTING
        else:
            assert said(got) == before.replace(HERE, folder), got
            served.append(folder)
    assert {"/srv/plain", "/srv/größe"} <= set(served)


@pytest.mark.parametrize("write", ["'@/x'", '"@/x"'])
def test_what_is_quoted_takes_what_these_quotes_keep(write: str) -> None:
    """A space, a glob, a semicolon; not the quote itself."""
    served = [
        folder
        for folder in FOLDERS
        if isinstance(rewritten(f"cat {write.replace('@', '/tmp/a')}", "/tmp/a", folder), str)
    ]
    assert {"/srv/my work", "/srv/a*", "/srv/a;b", "/srv/[ab]", "/srv/(x)"} <= set(served)
    assert ("/srv/it's" in served, '/srv/say "hi"' in served) == (write[0] == '"', write[0] == "'")


@pytest.mark.parametrize(("command", "wanted"), [
    ("cat /tmp/my\\ work/x", "cat /srv/other\\ one/x"),
    ("cat '/tmp/my work/x'", "cat '/srv/other one/x'"),
    ("sh -c \"cat '/tmp/my work/x'\"", "sh -c \"cat '/srv/other one/x'\""),
])  # fmt: skip
def test_a_folder_that_needed_quotes_is_found_in_each_way_to_write_it(command: str, wanted: str) -> None:
    """Escaped with a backslash it is the folder too: nothing of the recorded run is left."""
    assert rewritten(command, "/tmp/my work", "/srv/other one") == wanted
    assert rewritten(command, "/tmp/my work", "/srv/plain") == wanted.replace("/srv/other\\ one", "/srv/plain").replace(
        "/srv/other one", "/srv/plain"
    )


def test_a_quote_in_a_folder_is_found_as_a_shell_writes_it() -> None:
    """As the end of the quotes, one with a backslash, and quotes again; with a backslash in double quotes."""
    assert rewritten("cat '/tmp/it'\\''s/x'", "/tmp/it's", "/srv/b") == "cat '/srv/b/x'"
    assert rewritten('cat "/tmp/a \\"b\\"/x"', '/tmp/a "b"', "/srv/b") == 'cat "/srv/b/x"'


def test_a_block_of_code_in_markdown_is_a_command() -> None:
    """Some agents run it; the same words outside of it are prose."""
    text = "See /tmp/a:\n```bash\ncat /tmp/a/x\n```\n"
    assert not is_in_code_block(text, text.index("/tmp/a"))
    assert is_in_code_block(text, text.index("/tmp/a/x"))
    assert not keeps_shell_quoting("cat /tmp/a", 4, 10, "/srv/my work")
