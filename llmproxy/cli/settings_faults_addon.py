"""``llmproxy settings``, ``faults`` and ``addon``: options, kinds of injected faults, scripts for mitmproxy."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path

import typer

from llmproxy.amount_formatting import align_rows
from llmproxy.cli.parts.options import load_settings
from llmproxy.cli.parts.printing import print_json, print_line
from llmproxy.did_you_mean import did_you_mean
from llmproxy.errors import MachineError, SettingsError
from llmproxy.settings import HIDDEN, format_setting_value, list_options_of_settings


def settings_command(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """Show every option: its value, the value's source, its environment variable."""
    loaded = load_settings({})
    if as_json:
        values, sources = asdict(loaded.settings), loaded.sources
        values |= {o.name: HIDDEN for o in list_options_of_settings() if o.secret and values[o.name]}
        facts = [
            {"name": o.key, "value": values[o.name], "source": str(sources[o.name]), "env": o.env, "flag": o.flag}
            for o in list_options_of_settings()
        ]
        typer.echo(json.dumps(facts, indent=2, default=str))
        return
    rows = [("option", "value", "source", "environment")]
    for o in list_options_of_settings():
        value = format_setting_value(getattr(loaded.settings, o.name))
        rows.append((o.key, (HIDDEN if value and o.secret else value) or "-", str(loaded.sources[o.name]), o.env))
    typer.echo("\n".join(align_rows(rows)))


def faults_command(
    name: str = typer.Argument("", metavar="KIND|PRESET", help="A kind; or a preset, printed as a file to edit."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """List the kinds of injected faults and the presets, with an example each; or print one."""
    from llmproxy.core.faults.kinds import KINDS
    from llmproxy.core.faults.parsing import PRESETS, read_fault_preset_text

    if name in PRESETS:
        print_line(read_fault_preset_text(name).rstrip("\n"))
        return
    if name and name not in KINDS:
        near = did_you_mean(name, [*PRESETS, *KINDS])
        raise SettingsError(f"there is no kind or preset {name[:60]!r}{near}", hint="`llmproxy faults` lists them.")
    kinds = [KINDS[name]] if name else list(KINDS.values())
    if as_json:
        rows = [{"kind": each.name, "about": each.about, "sound": each.sound, "takes": each.defaults} for each in kinds]
        print_json({"kinds": rows, "presets": {} if name else dict(PRESETS)})
        return
    if not name:
        usage = "llmproxy run --faults KIND -- COMMAND  affects each call once,  KIND@3  only the third call"
        print_line(f"Kinds:  {usage}")
    for kind in kinds:
        takes = "".join(f", {name}: {value:g}" for name, value in kind.defaults.items())
        print_line(f"\n  {kind.name:<21}{kind.about}")
        print_line(f"  {'a robust agent':<21}{kind.sound}")
        print_line(f"  {'example':<21}- {{kind: {kind.name}{takes}, call: 2}}")
        for each in kind.takes:
            print_line(f"  {'':<21}    {each.name}: {each.about}")
    if name:
        return
    print_line(
        "\nPresets:  llmproxy run --faults PRESET -- COMMAND;  llmproxy faults PRESET > faults.yaml  is a file to "
        "change\n"
    )
    for preset, about in PRESETS.items():
        print_line(f"  {preset:<15}{about}")
    print_line("\nOne fault at a time, at each call:  llmproxy run --faults sweep -- COMMAND")


ADDONS = ("record_replay", "inject_faults")


def addon_command(
    name: str = typer.Argument("record_replay", help="record_replay, or inject_faults, which only injects faults."),
) -> None:
    """Print the path of the mitmproxy addon: mitmdump -s "$(llmproxy addon)"."""
    if name not in ADDONS:
        msg = f"there is no addon {name[:60]!r}{did_you_mean(name, ADDONS)}"
        raise SettingsError(msg, hint=f"There is: {', '.join(ADDONS)}")
    path = Path(str(files("llmproxy"))) / "data" / f"{name}.py"
    if not path.is_file():
        raise MachineError(f"the addon script is missing: {path}", hint="Install llmproxy again.")
    typer.echo(path)
