"""Check of one store or file of recordings, with printed findings: `llmproxy verify`, for each path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from llmproxy.advice import format_command
from llmproxy.amounts import format_count, name_some
from llmproxy.cli.parts.binding_texts import list_volatile_merges, print_merges
from llmproxy.cli.parts.import_files import ImportFile, read_exchanges
from llmproxy.cli.parts.printing import ProgressLine, print_line, to_line
from llmproxy.cli.parts.store_arguments import find_cassette, open_given
from llmproxy.core.cassettes.anonymized_export import read_head_notes
from llmproxy.core.cassettes.importing import convert_exchanges
from llmproxy.core.engine.carried_answers import find_conflicting_recordings
from llmproxy.core.keys.user_rules import Rules
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.store.integrity_checks import find_damages
from llmproxy.core.store.queries import read_accepted_changes
from llmproxy.core.store.rekeying import (
    RekeyedRecording,
    derive_and_write_keys,
    find_merged_keys,
    find_split_keys,
    rederive_keys,
)
from llmproxy.core.store.store import Store
from llmproxy.errors import CassetteNotFound, SettingsError
from llmproxy.server_store_path import show_store

_SHOWN = 20
"""Maximum groups of changed keys listed one by one."""


@dataclass(frozen=True, slots=True)
class Verifier:
    rules: Rules
    upstreams: Mapping[str, str]
    cassette: str | None = None
    """The one cassette of a store to check."""
    rekey: bool = False
    held: list[Path] = field(default_factory=list)
    """Stores that hold it."""
    lacking: list[CassetteNotFound] = field(default_factory=list)
    """Messages for stores without it."""

    def verify_store(self, path: Path) -> int:
        """Check a store, print and count the errors. Raises CassetteError."""
        with open_given(path) as database, ProgressLine(f"verifying {show_store(path)}", "interaction") as working:
            if self.cassette is not None and not self._is_cassette_stored(database, path):
                return 0
            damaged = list(find_damages(database, working.iterate, self.cassette))
            readable = not any(each.interaction is None for each in damaged)
            found: list[RekeyedRecording] = []
            if readable:
                live = database.count_interactions(self.cassette)
                found += working.iterate(rederive_keys(database, self.rules, self.upstreams, self.cassette), live)
            merged = {} if damaged else list_volatile_merges(database, self.rules, self.upstreams, self.cassette)
            told = [] if damaged else list(self._describe_conflicting_recordings(database))
        for each in damaged:
            where = "" if each.interaction is None else f"interaction {each.interaction}: "
            print_line(f"damaged: {where}{to_line(each.what)}")
        for key in (each for each in found if each.has_unexplained_key):
            print_line(
                f"damaged: interaction {key.id}: its key is {key.old[:15]}..., its request gives {key.new[:15]}..."
            )
        self._print_outdated_keys(path, found)
        if self.rekey and not damaged:
            with open_given(path, writable=True) as database:
                count = derive_and_write_keys(database, self.rules, self.upstreams)
            print_line(f"{format_count(count, 'key')} derived anew." if count else "Every key is as it should be.")
        print_merges(merged)
        for text in told:
            print_line(text)
        wrong = len(damaged) + sum(each.has_unexplained_key for each in found) + len(told)
        state = "nothing is wrong." if not wrong else f"{wrong} are not as they should be."
        print_line(f"{show_store(path)}: {format_count(len(found), 'live interaction')}, {state}")
        return wrong

    def count_file_errors(self, path: Path) -> int:
        """Check that each exchange of a file is a recording; returns the number of others. Raises CassetteError."""
        recorded = read_exchanges([ImportFile(path, None)])
        adopted = convert_exchanges(recorded, "verify", rules=self.rules, redactor=Redactor(), upstreams=self.upstreams)
        read_head_notes(recorded, path)
        skipped = [each for each in adopted if each.interaction is None]
        for each in skipped:
            print_line(f"{path}: exchange {each.recorded.number} is no recording: {to_line(each.why)}")
        state = "nothing is wrong." if not skipped else f"{len(skipped)} are not as they should be."
        print_line(f"{path}: {len(adopted)} exchanges, {state}")
        return len(skipped)

    def _describe_conflicting_recordings(self, database: Store) -> Iterator[str]:
        """Yield recordings that accepted changes would merge although their answers differ."""
        for name in database.list_cassette_names() if self.cassette is None else [self.cassette]:
            accepted = read_accepted_changes(database, name)
            for one, other in find_conflicting_recordings(database, name, accepted, self.rules, self.upstreams):
                names = sorted({each.name for each in accepted})
                yield (
                    f"cassette {to_line(name)}: recordings #{one} and #{other} answer differently, and would be one "
                    f"request under its accepted changes ({to_line(name_some(names))}); take one back: "
                    f"{format_command(f'changes drop {to_line(names[0])}', database.path)}"
                )

    def _is_cassette_stored(self, database: Store, path: Path) -> bool:
        try:
            if find_cassette(database, str(self.cassette)).sample is not None:
                raise SettingsError(
                    f"{to_line(str(self.cassette))} is a sample; a cassette is verified with all of them."
                )
        except CassetteNotFound as error:
            self.lacking.append(error)
            return False
        self.held.append(path)
        return True

    def _print_outdated_keys(self, path: Path, found: list[RekeyedRecording]) -> None:
        """Print recordings whose stored key differs from the key under the current rules."""
        changed = [each for each in found if each.old != each.new and each.other_rules]
        if changed:
            print_line(
                f"{len(changed)} interactions were recorded under other rules and have another key under today's:"
            )
            _print_groups("one key now (they would answer each other's requests)", find_merged_keys(found))
            _print_groups("different keys now (they were one request before)", find_split_keys(found))
            if not self.rekey:
                print_line("Replay derives today's keys whenever it opens their cassette.")
                print_line(f"To make them last: {format_command('verify --rekey', path)}")


def _print_groups(what: str, groups: list[list[RekeyedRecording]]) -> None:
    for group in groups[:_SHOWN]:
        print_line(f"  {', '.join(str(each.id) for each in group)}: {what}")
    if len(groups) > _SHOWN:
        print_line(f"  ... and {len(groups) - _SHOWN} more groups with {what}")
