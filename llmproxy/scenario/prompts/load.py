"""Prompts are data: `.md` files beside this module, with ``$name`` where something is filled in.

What is filled in is taken as it is: braces, dollars and backslashes in it mean nothing.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from string import Template


def prompt(name: str, **values: str) -> str:
    """Return a prompt with its places filled in. Raises KeyError for a place without a value."""
    return Template(data(f"{name}.md")).substitute(values).strip()


@cache
def data(name: str) -> str:
    """Return the text of a file in `prompts`."""
    return (files("llmproxy.scenario") / "prompts" / name).read_text("utf-8")


def fence_text(tag: str, text: str) -> str:
    """Return text between tags, from which it cannot break out."""
    return f"<{tag}>\n{text.replace(f'</{tag}', f'<\\/{tag}')}\n</{tag}>"
