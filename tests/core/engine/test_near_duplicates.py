"""Near duplicates through the engine: none is served, and the miss says where it parts from the recording."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

from llmproxy.core.store.file.store import FileStore
from llmproxy.core.store.queries import put_volatile_fields
from llmproxy.errors import MissError
from llmproxy.protocol import Decision, Mode
from tests.core.engine.test_engine import CHAT, NOW, answered, engine
from tests.support.duplicates import PRESENT, RECORDED, differing, list_duplicates, plant, prefixes
from tests.support.renamings import SLOTS, chat, make_run, make_world

SEED = 5


def _is_named(path: str, text: str) -> bool:
    """Return whether a miss names a place: by its path, or as people call it."""
    found = re.match(r"\$\.messages\[(\d+)\]", path)
    said = "system prompt" if found is None or found[1] == "0" else rf"message {int(found[1]) + 1}\b"
    return path in text or re.search(said, text) is not None


def test_each_near_duplicate_of_each_request_is_a_miss_that_names_the_place(tmp_path: Path) -> None:
    """Recorded with ids and folders of one run, asked with those of another: the run itself is all hits."""
    rng = random.Random(SEED)
    run, made_ids = make_run(rng)
    run = plant(rng, run)
    recorded, present = make_world(rng, made_ids), make_world(rng, made_ids)
    parts = list(prefixes(run))
    store = tmp_path / "s.db"
    with engine(store) as made:
        made.sessions.open("default", run_variables=[*recorded.run_variables(), *RECORDED])
        for n, part in enumerate(parts):
            exchange = made.arrive("POST", CHAT, None, ())
            made.identify(exchange, json.dumps(chat(part, recorded)).encode())
            message = {"role": "assistant", "content": f"answer {n}"}
            answered(made, exchange, json.dumps({"choices": [{"index": 0, "message": message}]}).encode())
    with FileStore.open(store, writable=True, now=lambda: NOW) as opened:
        put_volatile_fields(opened, "default", SLOTS)
    asked = 0
    with engine(store, Mode.REPLAY) as made:
        made.sessions.open("default", run_variables=[*present.run_variables(), *PRESENT])
        for part in parts:
            now = chat(part, present)
            exchange = made.arrive("POST", CHAT, None, ())
            made.identify(exchange, json.dumps(now).encode())
            assert exchange.decision is Decision.REPLAY, exchange.error
            made.outcome(exchange, 200)
            for each in list_duplicates(rng, "chat.completions", part, recorded, present):
                exchange = made.arrive("POST", CHAT, None, ())
                made.identify(exchange, json.dumps(each.tree).encode())
                assert exchange.decision is Decision.REFUSE, f"served: {each.why}"
                assert isinstance(exchange.error, MissError)
                places, told = list(differing(now, each.tree)), exchange.error.message
                assert any(_is_named(place, told) for place in places), (each.why, told)
                asked += 1
    assert asked >= 20 * len(parts)
