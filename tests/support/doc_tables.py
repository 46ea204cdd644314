"""Tables of the documentation that are made from the program, as Markdown."""

from __future__ import annotations

from llmproxy.core.faults.kinds import KINDS
from llmproxy.settings import format_setting_value, list_options_of_settings


def options_table() -> str:
    """Return all options, for docs/options.md."""
    lines = ["| flag | environment | default | meaning |", "|---|---|---|---|"]
    for option in list_options_of_settings():
        pattern = " ".join(filter(None, [option.flag, option.metavar])).replace("|", "\\|")
        flag = f"`{pattern}`" if option.has_flag else f"(key `{option.key}`)"
        default = f"`{format_setting_value(option.default)}`" if format_setting_value(option.default) else ""
        lines.append(f"| {flag} | `{option.env}` | {default} | {option.help} |")
    return "\n".join(lines) + "\n"


def kinds_table() -> str:
    """Return all kinds of faults, for docs/fault-kinds.md."""
    lines = ["| kind | what the client sees | takes (default) |", "|---|---|---|"]
    for kind in KINDS.values():
        takes = ", ".join(
            f"`{name}` ({'half' if name == 'chunk' else f'{value:g}'})" for name, value in kind.defaults.items()
        )
        lines.append(f"| `{kind.name}` | {kind.about} | {takes} |")
    return "\n".join(lines) + "\n"
