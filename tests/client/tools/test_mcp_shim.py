"""The words of `llmproxy mcp`, read without the command line's library; the backends of the shim."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from llmproxy.cli import load_command
from llmproxy.client.tools.mcp_shim import (
    EngineShimBackend,
    McpShimOptions,
    ProxyClientShimBackend,
    choose_mcp_server_name,
    parse_mcp_shim_arguments,
    split_secrets_from_command,
)
from llmproxy.core.secrets.entropy import list_secret_env_values
from llmproxy.core.secrets.redact import Redactor
from llmproxy.errors import MachineError
from llmproxy.settings import Settings
from tests.support.process import clean_env
from tests.test_architecture import HEAVY, imported


@pytest.mark.parametrize(("words", "asked"), [
    ("-- npx -y x", McpShimOptions(("npx", "-y", "x"))),
    ("--mode record --store=a.db -- x -- y", McpShimOptions(("x", "--", "y"), mode="record", store="a.db")),
    (
        "--proxy http://x:1 --session s --name n --cassette c -- x",
        McpShimOptions(("x",), "n", "http://x:1", "s", None, "c"),
    ),
    ("--store=-a -- x", McpShimOptions(("x",), store="-a")),
])  # fmt: skip
def test_plain_words_are_read(words: str, asked: McpShimOptions) -> None:
    """Options with a value, two dashes, the server's command."""
    assert parse_mcp_shim_arguments(words.split()) == asked


@pytest.mark.parametrize(
    "words", ["", "--", "x", "--help", "--moed record -- x", "--mode -- x", "--mode", "serve", "--mode --store -- x"]
)
def test_what_is_not_plain_is_the_command_line_s(words: str) -> None:
    """It has the help, and says what is wrong."""
    assert parse_mcp_shim_arguments(words.split()) is None


def test_both_readers_know_the_same_options() -> None:
    """What the command line offers is read here too."""
    options = {each for one in load_command("mcp").params for each in getattr(one, "opts", ())} - {"--help"}
    assert options == {f"--{name}" for name in McpShimOptions._fields[1:]}


def test_nothing_heavy_is_imported_before_a_proxy() -> None:
    """The client waits for the start of each of its servers."""
    code = (
        "import sys; sys.argv = ['llmproxy', 'mcp', '--proxy', 'http://127.0.0.1:9', '--', 'x'];"
        "sys.stdin = open('/dev/null'); from llmproxy.__main__ import run_llmproxy_cli; run_llmproxy_cli()"
    )
    assert not imported(code) & {*HEAVY, "typer", "asyncio", "sqlite3"}


def test_mistakes_are_said_without_a_traceback(tmp_path: Path) -> None:
    """By the short way too: a mode that is none, options that are the proxy's, a proxy whose host is not clear."""
    for words, said in (
        (["--mode", "recrod", "--", "x"], "recrod"),
        (["--proxy", "http://127.0.0.1:9", "--mode", "record", "--", "x"], "options of its own"),
        (["--proxy", "localhost:8080", "--", "x"], "--proxy localhost:8080: write http://localhost:8080"),
        (["--proxy", "127.0.0.1:8080", "--", "x"], "--proxy 127.0.0.1:8080: write http://127.0.0.1:8080"),
        (["--proxy", "https://localhost:8080", "--", "x"], "write http://HOST:PORT"),
        (["--proxy", "https://bob:S3cretPw@host", "--", "x"], "--proxy https://bob:***@host: write http://HOST:PORT"),
        (["--proxy", "bob:S3cretPw@host:1", "--", "x"], "--proxy bob:***@host:1: write http://bob:***@host:1"),
        (["--proxy", "http://localhost:80a", "--", "x"], "write http://HOST:PORT"),
        (["--proxy", "http://:8080", "--", "x"], "write http://HOST:PORT"),
        (["--", "x"], "LLMPROXY_URL localhost:9: write http://localhost:9"),
    ):
        env = clean_env() | ({"LLMPROXY_URL": "localhost:9"} if words[0] == "--" else {})
        done = subprocess.run(
            [sys.executable, "-m", "llmproxy", "mcp", *words], cwd=tmp_path, env=env, text=True,
            capture_output=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr


PLACES = {"cwd": "/home/kim/a", "home": "/home/kim", "tmp": "/tmp"}


@pytest.mark.parametrize(("command", "name"), [
    ("npx -y @modelcontextprotocol/server-filesystem .", "server-filesystem"),
    ("npx -y @modelcontextprotocol/server-filesystem@2026.1.1 .", "server-filesystem"),
    ("uvx mcp-server-git --repository .", "mcp-server-git"),
    ("/usr/bin/python3 tools/server.py", "server.py"),
    ("node /opt/x/index.js", "index.js"),
    ("uv run server", "server"),
    ("C:\\x\\server.exe", "server"),
    ("docker run -i --rm -e GITHUB_PERSONAL_ACCESS_TOKEN ghcr.io/github/github-mcp-server", "github-mcp-server"),
    ("env LOG=1 API_KEY=k3yk3yk3y uvx mcp-server-git", "mcp-server-git"),
])  # fmt: skip
def test_a_server_is_called_after_its_program(command: str, name: str) -> None:
    assert choose_mcp_server_name(command.split(), PLACES).rpartition("-")[0] == name


def test_a_server_has_one_name_in_every_folder() -> None:
    """The run's own folders are no difference, other arguments are."""
    here = choose_mcp_server_name(["npx", "files", "/home/kim/a/docs"], PLACES)
    assert here == choose_mcp_server_name(
        ["npx", "files", "/srv/ci/docs"], {"cwd": "/srv/ci", "home": "/root", "tmp": "/tmp"}
    )
    assert choose_mcp_server_name(["npx", "files", "/home/kim/a/other"], PLACES) != here
    assert choose_mcp_server_name(["npx", "files", "/home/kim/a/docs"], {"cwd": "/x"}) != here


@pytest.mark.parametrize("command", [
    "docker run -i --rm -e GITHUB_PERSONAL_ACCESS_TOKEN={} ghcr.io/github/github-mcp-server",
    "env API_KEY={} uvx mcp-server-git",
    "server --token {} --max-tokens 1000000000 --sort-key created_at",
    "server --api-key={}",
    "npx mcp-remote https://mcp.example.com/sse --header Authorization:{}",
])  # fmt: skip
def test_a_secret_in_the_command_is_no_part_of_the_name(command: str) -> None:
    """It is told to what redacts; another key, as in CI, is the same server."""
    here, secrets = split_secrets_from_command(command.format("ghp_k3y0123456789").split())
    assert secrets == ["ghp_k3y0123456789"]
    assert "k3y" not in choose_mcp_server_name(here, PLACES)
    there, _ = split_secrets_from_command(command.format("x").split())
    assert choose_mcp_server_name(here, PLACES) == choose_mcp_server_name(there, PLACES)


def test_a_secret_is_one_word() -> None:
    """Of a header the last, of a shell's command the first; a file with a secret, and an option after an option, are none."""
    assert split_secrets_from_command(["sh", "-c", "KEY=1 exec x"]) == (["sh", "-c", "KEY=1 exec x"], [])
    assert split_secrets_from_command(["sh", "-c", "A_TOKEN=abc exec x"]) == (["sh", "-c", "A_TOKEN= exec x"], ["abc"])
    assert split_secrets_from_command(["x", "--header", "Authorization: Bearer abcdefgh"])[1] == ["abcdefgh"]
    assert split_secrets_from_command(["x", "--token", "/run/key", "--secret", "--password", "~/p"])[1] == []


@pytest.mark.parametrize(
    ("command", "secret"),
    [
        ("--key {}", 0), ("--key={}", 0), ("--auth {}", 0), ("--pw {}", 0), ("--pwd={}", 0), ("--pass {}", 0),
        ("--db-pass {}", 0), ("-p {}", 0), ("-token {}", 0), ("--user kim:{}", 0), ("--auth=kim:{}", 0),
        ("-u kim:{}", 0),
        ("--user kim:hunter2024", "hunter2024"), ("--password /{}", "/{}"), ("--token /vault/app/key", ""),
        ("--user 1000:1000", ""),
        ("-p 8080:8080/tcp", ""), ("--key /etc/ssl/server9.pem", ""), ("--key created_at", ""), ("--bypass {}", ""),
        ("--auth https://auth.example.com:8443/a1b2", ""), ("-p 127.0.0.1:18080:18080", ""), ("--auth oauth2", ""),
        ("--user postgres:postgres", ""), ("--sort-key {}", ""),
    ],
)  # fmt: skip
def test_which_arguments_are_secrets(command: str, secret: str | int) -> None:
    """By a certain name always; by another only what looks like one, and a user's password."""
    value = "Hx7Qm2Wz9LpT4vRk8sBn"
    expected = value if secret == 0 else str(secret).format(value)
    here, found = split_secrets_from_command(["x", *command.format(value).split()])
    assert found == ([expected] if expected else [])
    assert not expected or expected not in " ".join(here)


@pytest.mark.parametrize(
    ("value", "is_secret"),
    [
        ("keychain", False), ("production", False), ("us-east.Primary", False), ("OS KEYRING", False),
        ("1000000000", False), ("128,000.50", False), ("https://auth.example.com/oauth/token2", False),
        ("/run/secrets/key", False), ("a-token-of-ours-4711", True), ("ghp_k3y0123456789", True),
        ("/Hx7Qm2Wz9LpT4vRk8sBn+a/Zq8=", True), ("//x7Qm2Wz9LpT4vRk8sBn", True), ("~Hx7Qm2Wz9LpT4", True),
        ("~/.ssh/id_ed25519", False), ("/etc/x509/k8s.pem", False), ("/no-such/folder/key.pem", False),
        ("kJhGfDsAqWeRtY", True), ("qwertzuiopasdfghjklyxcvbnm", True), ("hunter2!", True), ("keychain-", True),
    ],
)  # fmt: skip
def test_what_a_name_alone_makes_a_secret(value: str, is_secret: bool) -> None:
    """Words, numbers and URLs stand in questions too: two of them must not become one."""
    assert list_secret_env_values({"DEPLOY_TOKEN": value, "HOME": "x1y2z3x1y2z3"}) == [value] * is_secret


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        ("DB_PASS", True), ("PGPASS", True), ("MYSQL_PWD", True), ("DBPWD", True), ("DB_PASSWORD", True),
        ("API_KEY_2", True), ("GITHUB_PAT", True), ("SERVICE_KEY", True), ("PWD", False), ("OLDPWD", False),
        ("PATH", False), ("HOME", False), ("PATTERN", False),
    ],
)  # fmt: skip
def test_which_variables_are_secrets_by_their_names(name: str, is_secret: bool) -> None:
    """The same ones for the shim and for what a report hides."""
    value = "Hx7Qm2Wz9LpT4vRk8sBn"
    assert list_secret_env_values({name: value}) == [value] * is_secret
    assert Redactor({name: value}).text(f"it is {value}") == ("it is [REDACTED]" if is_secret else f"it is {value}")


def test_fault_rules_that_met_no_call_are_listed_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a proxy does: a typing error in a rule is not taken for a passed test."""
    backend = EngineShimBackend(Settings(store=tmp_path / "x.db", faults="mcp-gone@9"), "tools", {}, ())
    backend.end([], in_order=True)
    assert capsys.readouterr().err == "llmproxy: mcp: fault mcp-gone (rule 1) met no call: no call came\n"


def receive(client: socket.socket) -> None:
    asked = client.recv(65536)
    while b"\r\n\r\n" not in asked:
        asked += client.recv(65536)
    head, _, body = asked.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
    while len(body) < length:
        body += client.recv(65536)


def peer(*connections: Sequence[bytes]) -> int:
    """Serve connections one after the other, answering each request with the next bytes, byte by byte; the port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener:
            for answers in connections:
                client, _ = listener.accept()
                with client, suppress(ConnectionError):  # a client that has heard enough goes
                    for answer in answers:
                        receive(client)
                        for at in range(len(answer)):
                            client.send(answer[at : at + 1])

    threading.Thread(target=serve, daemon=True).start()
    return int(listener.getsockname()[1])


HEARD = b'{"out": "", "forward": 1}'


def answer(body: bytes = HEARD, status: str = "200 OK", more: str = "") -> bytes:
    """Write an answer of the proxy's."""
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body


def host(*connections: Sequence[bytes]) -> ProxyClientShimBackend:
    return ProxyClientShimBackend(f"http://127.0.0.1:{peer(*connections)}", "s", "server", "c")


def test_answers_are_put_together_and_the_connection_stays() -> None:
    """However they come; one that ends the connection opens the next with the next call."""
    last = answer(b"{}", more="connection: close\r\n")
    to = host([answer(), answer(), last], [answer(b"{}")])
    assert [to.on_line(b"{}").forward for _ in range(2)] == [1, 1]
    to.on_server_answer(1, [(5, b"{}")])
    to.end([], in_order=True)


def test_a_connection_that_was_closed_while_nothing_was_asked_is_opened_again() -> None:
    """The proxy closes what is idle for hours, and its client goes on after its lunch."""
    to = host([answer()], [answer()], [answer(b"{}")])
    for _ in range(2):
        assert to.on_line(b"{}").forward == 1
        assert to._http.sock.recv(1, socket.MSG_PEEK) == b""  # the end has come
    to.end([], in_order=True)


@pytest.mark.parametrize(
    "said", [b"", b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n", answer()[:-1], answer(b"no JSON")]
)
def test_what_is_no_answer_is_an_error(said: bytes) -> None:
    """It ended in the middle, or never was HTTP: nobody asks a second time."""
    to = host([said], [answer()])
    with pytest.raises(MachineError, match="does not answer"):
        to.on_line(b"{}")


def test_a_password_in_the_proxy_s_url_is_not_said() -> None:
    with pytest.raises(MachineError, match=r"^the proxy at http://bob:\*\*\*@127.0.0.1:9 does not answer"):
        ProxyClientShimBackend("http://bob:S3cretPw@127.0.0.1:9", "s", "server", "c").on_line(b"{}")


def test_what_the_proxy_refuses_is_said_in_its_words() -> None:
    to = host([answer(b'{"error": {"message": "disk full"}}', "500 Internal Server Error")])
    with pytest.raises(MachineError, match=r"^disk full$"):
        to.on_server_answer(1, [])
    to._http.close()
