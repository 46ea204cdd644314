"""The command ``llmproxy``: a thin layer that parses, calls and prints.

``llmproxy --help`` prints the list of :mod:`llmproxy.cli.commands` and imports no command. A command's module imports
typer at most; slow imports (the store, mitmproxy) are inside the command. :func:`main` is the one place where an error
becomes a message and an exit code.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Any

import typer
from typer.main import get_command

import llmproxy
from llmproxy.cli.commands import CommandGroup, make_default_typer
from llmproxy.cli.parts.completion import adapt_to_bash
from llmproxy.errors import Exit, print_final_error, without_passwords

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""Base of all command-line errors. Typer does not export it, and since 0.29 bundles its own click."""


def build_app() -> typer.Typer:
    app = make_default_typer(
        name="llmproxy",
        help="Record any agent's LLM traffic once, replay it for ever: byte for byte, offline, free.",
        cls=CommandGroup,
        context_settings={"help_option_names": ["-h", "--help"]},
        no_args_is_help=True,
        add_completion=True,
    )
    app.callback()(_root_callback)
    return app


def _print_version(asked: bool) -> None:
    if asked:
        serves = _mitmproxy_version()
        how = f"mitmproxy {serves}" if serves else "without mitmproxy: it cannot serve"
        typer.echo(f"llmproxy {llmproxy.__version__} ({how})")
        raise typer.Exit


def _print_version_json(asked: bool) -> None:
    """Print the version for :mod:`llmproxy.client.proxy_process` in another environment."""
    if asked:
        typer.echo(json.dumps({"llmproxy": llmproxy.__version__, "mitmproxy": _mitmproxy_version()}))
        raise typer.Exit


def _mitmproxy_version() -> str | None:
    """Return mitmproxy's version; None if the proxy cannot run here."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("mitmproxy")
    except PackageNotFoundError:
        return None


def _root_callback(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
    version_json: bool = typer.Option(
        False, "--version-json", callback=_print_version_json, is_eager=True, hidden=True
    ),
) -> None:
    """Do nothing; typer requires a callback."""


def _escape_unencodable(error: UnicodeError) -> tuple[bytes, int]:
    """Escape what no encoding can represent: a lone surrogate of a recording; bytes of a file name are kept."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    odd = error.object[error.start : error.end]
    names = range(0xDC80, 0xDD00)  # what `surrogateescape` makes of a byte
    made = (
        bytes([ord(each) & 0xFF]) if ord(each) in names else each.encode("ascii", "backslashreplace") for each in odd
    )
    return b"".join(made), error.end


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (see `errors.Exit`); `arguments` default to the process's own."""
    codecs.register_error("llmproxy", _escape_unencodable)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            with contextlib.suppress(OSError):  # what lies beneath was exchanged meanwhile
                stream.reconfigure(errors="llmproxy")
    try:
        with adapt_to_bash(os.environ):
            code = get_command(build_app())(args=arguments, prog_name="llmproxy", standalone_mode=False)
        return code if isinstance(code, int) else Exit.OK
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else Exit.FAILED
    except _UsageError as error:
        return _print_usage_error(error)
    except KeyboardInterrupt:  # typer makes an exit code of it where it can
        return Exit.INTERRUPTED
    except BrokenPipeError:  # whoever read our output has enough; nor may the interpreter flush into it at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FAILED
    except Exception as error:  # noqa: BLE001 (the last place where it can become a message)
        from llmproxy.advice import build_missing_extra_error

        return print_final_error(
            build_missing_extra_error(error) or error, debug=bool(os.environ.get("LLMPROXY_DEBUG"))
        )


def _print_usage_error(error: Any) -> Exit:
    possible = getattr(error, "possibilities", None)
    if possible:
        error.possibilities = None
        error.message = f"{error.message}. Did you mean {possible[0]!r}?"
    error.message = without_passwords(error.message)
    error.show()
    return Exit.USAGE
