"""Near duplicates through the engine: none is served, and the miss says where it parts from the recording."""

from __future__ import annotations

import json
import os
import random
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from llmproxy.core.bindings import RunVariable
from llmproxy.core.engine.engine import Engine
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.store.queries import save_cassette_volatile_fields
from llmproxy.errors import MissError
from llmproxy.protocol import Decision, Mode
from tests.core.engine.test_engine import CHAT, NOW, answered, ask, engine, send
from tests.support.duplicates import PRESENT, RECORDED, differing, list_duplicates, plant, prefixes
from tests.support.renamings import REQUESTS, SLOTS, make_run, make_world

SEED = 5


def _is_named(path: str, text: str) -> bool:
    """Return whether a miss names a place: by its path, or as people call it."""
    found = re.match(r"\$\.messages\[(\d+)\]", path)
    said = "system prompt" if found is None or found[1] == "0" else rf"message {int(found[1]) + 1}\b"
    return path in text or re.search(said, text) is not None


def test_each_near_duplicate_of_each_request_is_a_miss_that_names_the_place(store: Path) -> None:
    """Recorded with ids and folders of one run, asked with those of another: the run itself is all hits."""
    rng = random.Random(SEED)
    run, made_ids = make_run(rng)
    run = plant(rng, run)
    recorded, present = make_world(rng, made_ids), make_world(rng, made_ids)
    parts = list(prefixes(run))
    with engine(store) as made:
        made.sessions.open_session("default", run_variables=[*recorded.run_variables(), *RECORDED])
        for n, part in enumerate(parts):
            exchange = send(made, json.dumps(REQUESTS["chat.completions"](part, recorded)).encode())
            message = {"role": "assistant", "content": f"answer {n}"}
            answered(made, exchange, json.dumps({"choices": [{"index": 0, "message": message}]}).encode())
    with SqliteCassetteStore.open(store, writable=True, now=lambda: NOW) as opened:
        save_cassette_volatile_fields(opened, "default", SLOTS)
    asked = 0
    with engine(store, Mode.REPLAY) as made:
        made.sessions.open_session("default", run_variables=[*present.run_variables(), *PRESENT])
        for part in parts:
            now = REQUESTS["chat.completions"](part, present)
            exchange = send(made, json.dumps(now).encode())
            assert exchange.decision is Decision.REPLAY, exchange.error
            made.accounting.record_end(exchange, 200)
            for each in list_duplicates(rng, "chat.completions", part, recorded, present):
                exchange = send(made, json.dumps(each.tree).encode())
                assert exchange.decision is Decision.REFUSE, f"served: {each.why}"
                assert isinstance(exchange.error, MissError)
                places, told = list(differing(now, each.tree)), exchange.error.message
                assert any(_is_named(place, told) for place in places), (each.why, told)
                asked += 1
    assert asked >= 20 * len(parts)


CASES = int(os.environ.get("CASES", "150"))
"""In the suite; `CASES=10000 uv run pytest tests/core/engine/test_near_duplicates.py` for more."""
OWN = ["/tmp/a1", "/srv/ci/w", "/home/kim/work", "/private/var/folders/x9/T", "/builds/group/project", "/Users/kim"]
NOBODYS = ["/tmp", "/root", "/app", "/work", "/home", "/data", "/usr/local", "/usr/src/app", "/var/tmp", "/opt/app"]
"""Of one part, or well known: images and machines have them, whoever runs."""
SENTENCES = [
    "Linux uses {}, which is cleared at reboot.", "FROM python\nWORKDIR {}\n", "The file is {}/notes.txt, I think.",
    "Try `ls {}` first; {} is where it lies.",
]  # fmt: skip


class Case(NamedTuple):
    """A variable with its values in both runs, what the run names first, and what the answer to another request says."""

    name: str
    recorded: str
    present: str
    first: str
    """A question with this run's folder in it; empty for none."""
    below: bool
    says: str
    argument: bool
    """The answer says it in an argument of a tool."""

    @property
    def changes(self) -> bool:
        """Whether the answer may name this run's folder, by the rule."""
        return self.recorded in OWN and self.recorded != self.present and (self.argument or self.below)


def _make(rng: random.Random) -> Case:
    recorded = rng.choice(rng.choice((OWN, NOBODYS)))
    present = rng.choice((*OWN, recorded))
    below = rng.random() < 0.5
    named = rng.random() < 0.7
    first = "Read {}/part/of/mine.txt, please." if below else "What is {} for?"
    return Case(
        rng.choice(("cwd", "home", "tmp")), recorded, present, first if named else "", named and below,
        rng.choice(SENTENCES), rng.random() < 0.3,
    )  # fmt: skip


def _answer(case: Case, folder: str) -> bytes:
    said = case.says.replace("{}", folder)
    call = {"id": "c1", "type": "function", "function": {"name": "write", "arguments": json.dumps({"text": said})}}
    message = {"role": "assistant", "content": "" if case.argument else said, "tool_calls": [call] * case.argument}
    return json.dumps({"choices": [{"index": 0, "message": message}]}).encode()


def _play(made: Engine, n: int, case: Case, folder: str, *, record: bool) -> bytes:
    """Send what the run names first, then a question without any folder; return the answer to that."""
    made.sessions.open_session(f"s{n}", run_variables=(RunVariable(case.name, folder),))
    got = b""
    for question in (case.first.replace("{}", folder), "How does it go on?") if case.first else ("How does it go on?",):
        exchange = ask(made, question, f"/s/s{n}{CHAT}")
        if record:
            answered(made, exchange, _answer(case, folder) if "folder" not in question else b"{}")
        else:
            assert exchange.decision is Decision.REPLAY, (case, exchange.error and exchange.error.message)
            got = made.answering.serve_recorded(exchange).body
            made.accounting.record_end(exchange, 200)
    return got


def test_only_a_runs_own_folder_becomes_this_runs(tmp_path: Path) -> None:
    """And only in arguments, or where the run named something below it before; all else is served byte for byte; 0 wrong."""
    covered, rng, store = Counter[bool](), random.Random(5), tmp_path / "s.db"
    cases = [_make(rng) for _ in range(CASES)]
    with engine(store) as made:
        for n, case in enumerate(cases):
            _play(made, n, case, case.recorded, record=True)
    with engine(store, Mode.REPLAY) as made:
        for n, case in enumerate(cases):
            got = _play(made, n, case, case.present, record=False)
            said = _answer(case, case.present if case.changes else case.recorded)
            assert (json.loads(got) == json.loads(said)) if case.changes else (got == said), (n, case, got)
            covered[case.changes] += 1
    assert min(covered[True], covered[False]) > CASES // 8
