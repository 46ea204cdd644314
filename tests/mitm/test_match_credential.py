"""A bad key stays a bad key: 401 and 403 in their turn, never a hit in `auto`, and with --match-credential each key's own answer."""

from __future__ import annotations

from pathlib import Path

from tests.mitm.rig import Rig, connected, recorded
from tests.mitm.wire import Wire, chat
from tests.provider import Provider, Reply, Script, Step, json_answer

RIGHT, WRONG = "sk-proj-right0Zq7Wn4Vb9Kx2", "sk-proj-wrong0Zq7Wn4Vb9Kx2"
DENIED = json_answer(
    {"error": {"message": "Incorrect API key provided", "type": "invalid_request_error", "code": "invalid_api_key"}},
    401,
)
SCRIPT = Script(
    (
        Step(Reply("hello"), sends={"authorization": f"Bearer {RIGHT}"}, times=None),
        Step(DENIED, sends={"authorization": f"Bearer {WRONG}"}, times=None),
    ),
    ordered=False,
)


def status(c: Wire, key: str) -> int:
    """Ask with a key."""
    return c.ask(chat("hi", headers={"authorization": f"Bearer {key}"})).status


def record(store: Path, *keys: str, match: bool = True) -> None:
    """Record one request with each key."""
    with connected(Provider(SCRIPT), "record", store, match_credential=match) as (_, c):
        for key in keys:
            status(c, key)


def test_a_wrong_key_does_not_get_the_right_key_s_answer(tmp_path: Path) -> None:
    """Each key its own, in any order; a key that was never recorded is a miss."""
    store = tmp_path / "x.db"
    record(store, RIGHT, WRONG)
    with Rig("replay", store, match_credential=True) as rig, rig.client() as c:
        assert [status(c, key) for key in (WRONG, RIGHT, WRONG, WRONG, RIGHT)] == [401, 200, 401, 401, 200]
        assert status(c, "sk-proj-another0Zq7Wn4Vb9Kx2") == 404


def test_a_wrong_key_that_was_never_recorded_is_a_miss(tmp_path: Path) -> None:
    """It is not told what the right key was told."""
    store = tmp_path / "x.db"
    record(store, RIGHT)
    with Rig("replay", store, match_credential=True) as rig, rig.client() as c:
        assert [status(c, WRONG), status(c, RIGHT)] == [404, 200]


def test_without_the_option_a_401_is_replayed_in_its_turn(tmp_path: Path) -> None:
    """A recorded session with a wrong key first and a right one after it replays so, with no key at all."""
    store = tmp_path / "x.db"
    record(store, WRONG, RIGHT, match=False)
    with Rig("replay", store) as rig, rig.client() as c:
        assert [c.ask(chat("hi")).status for _ in range(3)] == [401, 200, 200]


def test_in_auto_a_401_is_never_a_hit(tmp_path: Path) -> None:
    """Whoever mends the key is not told for ever that it is wrong; with the option or without."""
    for match in (False, True):
        store = tmp_path / f"{match}.db"
        record(store, WRONG, match=match)
        with connected(p := Provider(SCRIPT), "auto", store, match_credential=match) as (_, c):
            assert [status(c, WRONG), status(c, RIGHT)] == [401, 200]
            assert len(p.requests) == 2


def test_the_key_itself_is_nowhere(tmp_path: Path) -> None:
    """Only its fingerprint is, and without the secret beside the store that says nothing."""
    store = tmp_path / "x.db"
    record(store, RIGHT, WRONG)
    for path in tmp_path.iterdir():
        data = path.read_bytes()
        assert RIGHT.encode() not in data
        assert WRONG.encode() not in data
    assert len({kept.key for kept in recorded(store)}) == 2


def test_the_secret_goes_with_the_store(tmp_path: Path) -> None:
    """A store without its secret knows nobody's key: every request is a miss, and none a wrong hit."""
    store = tmp_path / "x.db"
    record(store, RIGHT)
    (tmp_path / "x.db.secret").unlink()
    with Rig("replay", store, match_credential=True) as rig, rig.client() as c:
        assert status(c, RIGHT) == 404
