"""``llmproxy faults``: the kinds of injected faults and the presets, with an example each."""

from __future__ import annotations

import typer

from llmproxy.cli.parts.printing import print_json, print_line
from llmproxy.core.faults.kinds import KINDS
from llmproxy.core.faults.parsing import PRESETS, read_preset_text
from llmproxy.core.faults.rules import FaultKind
from llmproxy.did_you_mean import did_you_mean
from llmproxy.errors import SettingsError


def faults(
    name: str = typer.Argument("", metavar="KIND|PRESET", help="A kind; or a preset, printed as a file to edit."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """List the kinds of injected faults and the presets, with an example each; or print one."""
    if name in PRESETS:
        print_line(read_preset_text(name).rstrip("\n"))
        return
    if name and name not in KINDS:
        near = did_you_mean(name, [*PRESETS, *KINDS])
        raise SettingsError(f"there is no kind or preset {name[:60]!r}{near}", hint="`llmproxy faults` lists them.")
    kinds: list[FaultKind] = [KINDS[name]] if name else list(KINDS.values())
    if as_json:
        rows = [{"kind": each.name, "about": each.about, "sound": each.sound, "takes": each.defaults} for each in kinds]
        print_json({"kinds": rows, "presets": {} if name else dict(PRESETS)})
        return
    if not name:
        print_line(
            "Kinds:  llmproxy run --faults KIND -- COMMAND  affects each call once,  KIND@3  only the third call"
        )
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
