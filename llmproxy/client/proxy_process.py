"""Processes of a command that uses the proxy: the proxy, and the command itself.

The proxy is the one at LLMPROXY_URL, or one that is started for the command and stopped after it (`ensure_proxy`).
mitmproxy pins its dependencies strictly, so it often has an environment of its own (`find_proxy_command`). Its output
goes to a file, in which a line of JSON gives the address. The command (`run_child`) uses our terminal and gets our
signals; its exit code becomes ours.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

import llmproxy
from llmproxy.advice import NAME, build_own_pip_requirement
from llmproxy.calls_and_totals import Totals
from llmproxy.client.child_env import URL_VARIABLE
from llmproxy.client.control import ControlApiClient, ControlError
from llmproxy.errors import LLMProxyError, MachineError
from llmproxy.postgres_store_paths import is_postgres_url
from llmproxy.protocol import STARTED_BY_VARIABLE, SUMMARY_VARIABLE

COMMAND_VARIABLE = "LLMPROXY_COMMAND"
PATIENCE = 120.0
"""Seconds until a proxy must serve; long, for a cold disk or a machine with ten times the work that it can do."""
DOWNLOAD_PATIENCE = 300.0
"""The same if uvx or pipx may have to install it first."""
ASKED = 30.0
"""Seconds that a command may take to print its version."""
_ANNOUNCED = '{"serves": '
"""Prefix of the line in which `llmproxy start --announce` gives its address."""


@dataclass(frozen=True, slots=True)
class ProxyStartCommandLine:
    words: tuple[str, ...]
    source: str
    patience: float = PATIENCE
    notice: str = ""


def _list_llmproxy_on_path(path: str) -> Iterator[str]:
    seen: set[str] = set()
    for folder in path.split(os.pathsep):
        found = shutil.which("llmproxy", path=folder) if folder else None
        if found and (real := str(Path(found).resolve())) not in seen:
            seen.add(real)
            yield found


def _run_version_command(words: Sequence[str], env: Mapping[str, str]) -> str:
    """Return a command's version; empty if it prints none, or cannot serve."""
    with suppress(OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError):
        done = subprocess.run(
            [*words, "--version-json"], capture_output=True, text=True, timeout=ASKED, check=False, env=dict(env)
        )
        versions = json.loads(done.stdout)
        return str(versions["llmproxy"]) if versions["mitmproxy"] else ""
    return ""


@dataclass(frozen=True, slots=True)
class LlmproxyInstallationProbe:
    installed: Callable[[str], bool] = lambda module: find_spec(module) is not None
    on_path: Callable[[str], Iterator[str]] = _list_llmproxy_on_path
    which: Callable[[str, str], str | None] = lambda name, path: shutil.which(name, path=path)
    ask_version: Callable[[Sequence[str], Mapping[str, str]], str] = _run_version_command
    package: Callable[[str], str] = build_own_pip_requirement
    """Returns this package's name with an extra, as installers take it."""


def find_proxy_command(env: Mapping[str, str], look: LlmproxyInstallationProbe | None = None) -> ProxyStartCommandLine:
    """Return the command of a proxy that can run: the first of LLMPROXY_COMMAND, this environment, an ``llmproxy`` on
    PATH that has mitmproxy (each is asked: the first is often this environment's own), a version that uvx has
    downloaded, uvx, pipx. The last two install it first, and may hang offline: a notice says so. Raises MachineError:
    what to install.
    """
    look = look or LlmproxyInstallationProbe()
    if words := tuple(shlex.split(env.get(COMMAND_VARIABLE, ""))):
        return ProxyStartCommandLine(words, COMMAND_VARIABLE)
    if look.installed("mitmproxy"):
        return ProxyStartCommandLine((sys.executable, "-m", "llmproxy"), "this environment")
    path = env.get("PATH", os.defpath)
    for found in look.on_path(path):
        if version := look.ask_version([found], env):
            return ProxyStartCommandLine((found,), f"{found} on PATH", notice=_describe_other_version(version, found))
    package = look.package("proxy")
    if uvx := look.which("uvx", path):
        cached = (uvx, "--offline", "--from", package, "llmproxy")
        if version := look.ask_version(cached, env):
            return ProxyStartCommandLine(
                cached, "uvx, from its cache", notice=_describe_other_version(version, "uvx's cache")
            )
        return _build_download_command((uvx, "--from", package, "llmproxy"), "uvx", package)
    if pipx := look.which("pipx", path):
        return _build_download_command((pipx, "run", "--spec", package, "llmproxy"), "pipx", package)
    raise MachineError(
        "the proxy needs mitmproxy, which is not installed here; no llmproxy on PATH has it, and neither uvx nor pipx "
        "is there.",
        hint=f"Here:  pip install '{package}'\nor elsewhere:  export {COMMAND_VARIABLE}=/PATH/TO/llmproxy",
    )


def _describe_other_version(version: str, where: str) -> str:
    if version == llmproxy.__version__:
        return ""
    return f"the proxy is llmproxy {version} ({where}), while {llmproxy.__version__} asks it"


def _build_download_command(words: tuple[str, ...], tool: str, package: str) -> ProxyStartCommandLine:
    typed = shlex.join((tool, *words[1:]))
    notice = (
        f"no proxy in this environment or on PATH: `{typed}` may download one now.\n"
        f"To have one, once and for all:  uv tool install '{package}'  (or the same with pipx install),\n"
        f'or say where it is:  export {COMMAND_VARIABLE}="$(uv tool dir)/{NAME}/bin/llmproxy"'
    )
    return ProxyStartCommandLine(words, tool, DOWNLOAD_PATIENCE, notice)


ENDING = 15.0
"""Seconds that a proxy gets to store open answers."""
PAUSE = 0.02
_TAIL = 2000


class StartedProxyProcess:
    def __init__(
        self,
        popen: subprocess.Popen[bytes],
        command: ProxyStartCommandLine,
        log: Path,
        guard: subprocess.Popen[bytes] | None,
    ) -> None:
        self.popen = popen
        self.log = log
        self.url = ""
        """Its address; empty until :meth:`wait_ready`."""
        self._command = command
        self._guard = guard

    @property
    def control(self) -> ControlApiClient:
        return ControlApiClient(self.url)

    @property
    def log_text(self) -> str:
        return "".join(line for line in self._read_log_lines if not line.startswith(_ANNOUNCED))

    @property
    def _read_log_lines(self) -> list[str]:
        return self.log.read_text("utf-8", "replace").splitlines(keepends=True) if self.log.is_file() else []

    def read_final_totals(self) -> tuple[Totals | None, int | None]:
        """Return its totals, and its unused recordings; None if it crashed, or runs elsewhere."""
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            value = json.loads(_summary_file(self.log).read_text("utf-8"))
            return Totals(**Totals.parse_fields(value)), value["unused"]
        return None, None

    def delete_logs(self) -> None:
        for path in (self.log, _summary_file(self.log)):
            with suppress(OSError):
                path.unlink()

    @property
    def is_alive(self) -> bool:
        return self.popen.poll() is None

    def wait_ready(self) -> str:
        """Wait until it serves and return its URL. Raises MachineError with its output if it ended or took too long."""
        deadline = time.monotonic() + self._command.patience
        while not self.url:
            said = [line for line in self._read_log_lines if line.startswith(_ANNOUNCED) and line.endswith("\n")]
            if said:
                self.url = str(json.loads(said[0])["serves"])
                break
            if not self.is_alive or time.monotonic() > deadline:
                waited = f"does not serve after {self._command.patience:g} s"
                state = waited if self.is_alive else f"ended with {self.popen.returncode}"
                self.end(seconds=1.0)
                words = shlex.join(self._command.words)
                here = self._command.words[0] == sys.executable
                hint = "" if here else f"It was called as `{words}` ({self._command.source})."
                tail = self.log_text[-_TAIL:].strip() or "(it said nothing)"
                own = tail.removeprefix("llmproxy: ")  # its words for the user need none of ours around them
                raise MachineError(f"the proxy {state}:\n{tail}" if own == tail or state == waited else own, hint=hint)
            time.sleep(PAUSE)
        while True:  # it prints its address shortly before it answers
            try:
                self.control.health(timeout=5.0)
            except ControlError:
                if not self.is_alive or time.monotonic() > deadline:
                    self.end(seconds=1.0)
                    raise
                time.sleep(PAUSE)
            else:
                return self.url

    def end(self, seconds: float = ENDING) -> int:
        if self.is_alive:
            if os.name != "posix" and self.url:  # no signal there lets a program end in order
                with suppress(ControlError):
                    self.control.stop()
            else:
                self.popen.terminate()
            try:
                self.popen.wait(seconds)
            except subprocess.TimeoutExpired:
                kill_group_at_once(self.popen)
                self.popen.wait()
        _signal_group(self.popen.pid, signal.SIGTERM)  # a wrapper that did not wait for what it started
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
            self._guard = None
        return self.popen.returncode


def begin_proxy_start(
    command: ProxyStartCommandLine, options: Sequence[str], env: Mapping[str, str], *, log: Path | None = None,
    cwd: Path | None = None, started_by: str = "",
) -> StartedProxyProcess:  # fmt: skip
    """Start ``llmproxy start``, on a free port unless `options` name one, without waiting. Raises MachineError.

    `env` is the environment before base URLs were set to the proxy: its base URLs become upstreams. `log` takes the
    output, `started_by` is the command that would start it again.
    """
    if log is None:
        handle, name = tempfile.mkstemp(prefix="llmproxy-", suffix=".log")
        os.close(handle)
        log = Path(name)
    port = () if any(each.startswith("--port") for each in options) else ("--port", "0")
    words = [*command.words, "start", *port, *options, "--no-quiet", "--announce"]
    own = (COMMAND_VARIABLE, "LLMPROXY_URL", "LLMPROXY_QUIET")
    clean = {name: value for name, value in env.items() if name not in own}
    clean |= {STARTED_BY_VARIABLE: started_by, SUMMARY_VARIABLE: str(_summary_file(log).absolute())}
    for word in [word for word in words if is_postgres_url(word.removeprefix("--store="))]:
        words.remove(word)  # everybody on the machine may read a command line, and it may hold a password
        clean["LLMPROXY_STORE"] = word.removeprefix("--store=")
    if command.notice:
        sys.stderr.write(f"llmproxy: {command.notice}\n")
        sys.stderr.flush()
    try:
        with log.open("wb") as out:
            popen = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**clean, "PYTHONUNBUFFERED": "1"},
                cwd=cwd,
                start_new_session=True,  # Ctrl-C at the terminal is for the child; we end the proxy after it
            )
    except OSError as error:
        msg = f"cannot start the proxy: {words[0]}: {error.strerror or error}"
        raise MachineError(msg, hint=f"It comes from: {command.source}.") from error
    return StartedProxyProcess(popen, command, log, _spawn_watchdog(popen.pid))


def _spawn_watchdog(pid: int) -> subprocess.Popen[bytes] | None:
    """Start a shell that stops the proxy when our end of a pipe closes, even if we are killed; None without `sh`."""
    shell = shutil.which("sh")
    if os.name != "posix" or shell is None:
        return None
    command, null = [shell, "-c", f"read _; kill -TERM {pid}"], subprocess.DEVNULL
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=null, stderr=null, start_new_session=True)


def _signal_group(pid: int, number: signal.Signals) -> None:
    if os.name == "posix":
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, number)


def kill_group_at_once(popen: subprocess.Popen[bytes]) -> None:
    """Kill a process that we started, with its group if it leads one."""
    if os.name == "posix":
        _signal_group(popen.pid, signal.SIGKILL)
    else:
        popen.kill()


def _summary_file(log: Path) -> Path:
    return log.with_name(f"{log.name}.summary")


TOKEN_VARIABLE = "LLMPROXY_TOKEN"  # noqa: S105 (the name of a variable)


@dataclass(slots=True)
class ProxyHandle:
    url: str
    control: ControlApiClient
    process: StartedProxyProcess | None
    exit_code: int | None = None

    def end_if_started(self) -> None:
        if self.process is not None and self.exit_code is None:
            self.exit_code = self.process.end()


def read_llmproxy_url(env: Mapping[str, str]) -> str:
    return env.get(URL_VARIABLE, "").strip().rstrip("/")


@contextmanager
def ensure_proxy(
    options: Sequence[str], env: Mapping[str, str], *, log: Path | None = None, started_by: str = ""
) -> Iterator[ProxyHandle]:
    """Find the running proxy, or start one that is stopped after the block; `started_by`: the command, for advice.

    Raises MachineError: none can be started, or none answers at LLMPROXY_URL.
    """
    token = env.get(TOKEN_VARIABLE, "")
    if url := read_llmproxy_url(env):
        control = ControlApiClient(url, token=token)
        control.health()
        yield ProxyHandle(url, control, None)
        return
    process = begin_proxy_start(find_proxy_command(env), options, env, log=log, started_by=started_by)
    mine: ProxyHandle | None = None
    try:
        url = process.wait_ready()
        mine = ProxyHandle(url, ControlApiClient(url, token=token), process)
        yield mine
    finally:
        if mine is None:
            process.end(seconds=1.0)
        else:
            mine.end_if_started()
        if log is None:
            process.delete_logs()


NOT_FOUND = 127
NOT_EXECUTABLE = 126
KILLED = 128
"""A shell's exit code for a child that ended by signal n is 128 + n."""
_TERMINAL = ("SIGINT", "SIGQUIT")
"""Signals that a terminal sends to the whole foreground group, the child included."""
_FORWARDED = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")


class CommandNotFound(LLMProxyError):
    """The command does not exist, or cannot be executed; `exit_code` is that of a shell."""

    code = "llmproxy_command_not_found"


def find_command_path(command: Sequence[str], env: Mapping[str, str]) -> str:
    """Return the path of a program. Raises CommandNotFound."""
    if (found := shutil.which(command[0], path=env.get("PATH"))) is None:
        there = os.path.exists(command[0]) and os.sep in command[0]  # noqa: PTH110 (a word of a command)
        raise _build_command_not_found(command[0], NOT_EXECUTABLE if there else NOT_FOUND)
    return found


def _build_command_not_found(word: str, code: int) -> CommandNotFound:
    what = "cannot be executed" if code == NOT_EXECUTABLE else "not found"
    hint = "Write the command as words, not as one text: llmproxy run -- npm test" if " " in word else ""
    error = CommandNotFound(f"{word}: command {what}", hint=hint)
    error.exit_code = code  # type: ignore[assignment]  # a shell's code, not one of our table
    return error


def run_child(
    command: Sequence[str],
    env: Mapping[str, str],
    started: Callable[[int], None] = lambda _pid: None,
    heard: Callable[[int], object] = lambda _signal: None,
    enter: Callable[[], object] | None = None,
) -> int:
    """Run a command; return its exit code, 128 + n if signal n ended it. Raises CommandNotFound.

    `started` gets its process id, `heard` each signal that arrived meanwhile; the child calls `enter` before exec.
    """
    popen: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        heard(number)
        if popen is None:
            early.append(number)
        elif number not in terminal or not _shares_terminal_signals():
            popen.send_signal(number)

    terminal = {getattr(signal, name) for name in _TERMINAL if hasattr(signal, name)}
    caught = terminal | {getattr(signal, name) for name in _FORWARDED if hasattr(signal, name)}
    # What was ignored when we came (nohup) stays so, for us and for the child.
    before = {
        number: signal.signal(number, forward) for number in caught if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        try:
            popen = subprocess.Popen(command, env=dict(env), preexec_fn=enter)  # noqa: PLW1509 - one thread
        except OSError as error:
            code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
            raise _build_command_not_found(command[0], code) from error
        for number in early:
            popen.send_signal(number)
        started(popen.pid)
        return to_shell_exit_code(popen.wait())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def to_shell_exit_code(returned: int) -> int:
    return KILLED - returned if returned < 0 else returned


def _shares_terminal_signals() -> bool:
    with suppress(OSError, AttributeError), open("/dev/tty", "rb") as tty:  # noqa: PTH123 (a device)
        return os.tcgetpgrp(tty.fileno()) == os.getpgrp()
    return False
