"""Real SDKs as real processes: what they understood while recording is what they understand in replay.

Recorded from a local provider with keys in the environment, replayed with that provider stopped and no key at all.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from llmproxy.cli import main
from tests.support import needed

from .drivers import CANARY, DRIVERS, UPSTREAMS, Driver, Outcome
from .lab import TWIST, Lab, probes

pytestmark = pytest.mark.sdk

PAIRS = [
    pytest.param(upstream, driver, id=f"{upstream}-{driver.name}")
    for upstream in UPSTREAMS
    for driver in DRIVERS
    if driver.cases_on(upstream)
]
by_driver = pytest.mark.parametrize(("upstream", "driver"), PAIRS)
by_upstream = pytest.mark.parametrize("upstream", UPSTREAMS)


def performed(labs: dict[str, Lab], environments: dict[str, str], upstream: str, driver: Driver | None = None) -> Lab:
    """Find what happened; skips (or fails, where everything is required) if it could not happen."""
    wanted = {driver.environment} if driver else set()
    wanted |= {"node"} if upstream == "aimock" else set()
    for name in sorted(wanted):
        if environments[name]:
            needed(environments[name])
    if upstream not in labs:
        needed("; ".join(problem for problem in environments.values() if problem))
    return labs[upstream]


def errors(outcome: Outcome) -> dict[str, Any]:
    return {case: line["error"] for case, line in outcome.items() if "error" in line}


def results(outcome: Outcome) -> dict[str, str]:
    """Print each case's result (or error), for an exact comparison with a readable difference."""
    return {
        case: json.dumps(line.get("result", line.get("error")), indent=1, ensure_ascii=False, sort_keys=True)
        for case, line in outcome.items()
    }


@by_driver
def test_recording_does_not_disturb(
    labs: dict[str, Lab], environments: dict[str, str], upstream: str, driver: Driver
) -> None:
    assert errors(performed(labs, environments, upstream, driver).recorded[driver.name]) == {}


@by_driver
def test_replay_equals_the_recording(
    labs: dict[str, Lab], environments: dict[str, str], upstream: str, driver: Driver
) -> None:
    """With the provider stopped and no key, the SDK's parsed results are equal, case by case, and once more after that."""
    lab = performed(labs, environments, upstream, driver)
    assert results(lab.replayed[driver.name]) == results(lab.recorded[driver.name])
    assert results(lab.again[driver.name]) == results(lab.recorded[driver.name])


@by_driver
def test_a_miss_is_the_sdks_own_exception(
    labs: dict[str, Lab], environments: dict[str, str], upstream: str, driver: Driver
) -> None:
    """A changed prompt raises the SDK's exception with our message in it, after one request."""
    lab = performed(labs, environments, upstream, driver)
    outcome, asked = lab.missed[driver.name], probes(driver, upstream)
    for case in asked:
        assert "error" in outcome[case], f"{case}: the SDK raised nothing: {outcome[case]}"
        error = outcome[case]["error"]
        assert error["class"] not in ("DriverDied", "Exception"), error
        assert "llmproxy:" in error["message"], error
        assert TWIST in error["message"], f"{case}: the new value is not shown: {error['message']}"
        assert re.search(r"differs at (message \d+|input) \(user\)", error["message"]), error
    assert lab.misses[driver.name] == len(asked)


@pytest.mark.parametrize(
    ("upstream", "driver"),
    [pair for pair in PAIRS if "retry" in pair.values[1].cases_on(pair.values[0])],  # type: ignore[union-attr]
)
def test_a_recorded_retry_replays_without_its_pause(
    labs: dict[str, Lab], environments: dict[str, str], upstream: str, driver: Driver
) -> None:
    """429 with retry-after 1 and then 200: a second while recording, nothing in replay."""
    lab = performed(labs, environments, upstream, driver)
    assert lab.recorded[driver.name]["retry"]["seconds"] >= 1
    # A pause is there each time, what a busy machine adds is not.
    assert min(outcome[driver.name]["retry"]["seconds"] for outcome in (lab.replayed, lab.again)) < 1


@by_upstream
def test_replay_makes_no_connection(labs: dict[str, Lab], environments: dict[str, str], upstream: str) -> None:
    """What listens on the upstream's port in replay is never connected to, misses included."""
    lab = performed(labs, environments, upstream)
    assert lab.asked_upstream > 0
    assert lab.late_connections == 0


@by_upstream
def test_nothing_is_lost(labs: dict[str, Lab], environments: dict[str, str], upstream: str) -> None:
    """Every answer that the upstream gave was recorded, also where a client hung up right after the last event."""
    lab = performed(labs, environments, upstream)
    told = [line.split() for line in lab.proxies[0].stdout.splitlines()]
    recorded = sum(words[1:2] == ["RECORD"] and not (upstream == "aimock" and "models" in words) for words in told)
    assert recorded == lab.asked_upstream  # aimock does not count GET /models


@by_upstream
def test_no_key_is_written(labs: dict[str, Lab], environments: dict[str, str], upstream: str) -> None:
    """The keys that were recorded with stand in no file that the proxies wrote, printed lines included."""
    lab = performed(labs, environments, upstream)
    files = {path for px in lab.proxies for path in px.files()}
    assert lab.store in files
    assert [path.name for path in files if CANARY.encode() in path.read_bytes()] == []


@by_upstream
def test_the_proxies_end_cleanly(labs: dict[str, Lab], environments: dict[str, str], upstream: str) -> None:
    """SIGINT ends both proxies with 0, without a traceback."""
    for px in performed(labs, environments, upstream).proxies:
        assert px.exit_code == 0, px.stdout[-2000:] + px.stderr[-2000:]
        assert "Traceback" not in px.stdout + px.stderr


@pytest.mark.parametrize("upstream", ["provider"])
def test_the_provider_sees_the_client_and_not_us(
    labs: dict[str, Lab], environments: dict[str, str], upstream: str
) -> None:
    """Keys, SDK headers and what tracing adds arrive at the provider; headers of ours and of proxies, or others, do not."""
    lab = performed(labs, environments, upstream)
    assert [f"{seen.method} {seen.target}: {seen.refused}" for seen in lab.seen if seen.refused] == []
    names = {name.lower() for seen in lab.seen for name, _ in seen.headers}
    ours = {name for name in names if name.startswith(("x-llmproxy", "proxy-")) or name in ("via", "forwarded")}
    assert ours == set()
    keyed = [seen for seen in lab.seen if seen.dialect != "ollama.chat"]
    assert [each.target for each in keyed if not any(CANARY in value for _, value in each.headers)] == []
    assert not any("/s/" in seen.target for seen in lab.seen)
    for name in ("traceparent", "baggage", "sentry-trace", "x-request-id", "idempotency-key"):
        without = {f"{seen.header('user-agent')} {seen.target}" for seen in lab.seen if seen.header(name) is None}
        assert without == set(), name
        found = [seen.header(name) for seen in lab.seen]
        assert len(set(found)) > len(found) * 0.9, name  # a retry by the HTTP library itself repeats its own


@by_upstream
def test_the_audit_explains_every_difference(
    labs: dict[str, Lab], environments: dict[str, str], upstream: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of what was recorded under one key, and of what each replayed answer was asked with."""
    lab = performed(labs, environments, upstream)
    assert main(["audit", "--store", str(lab.store)]) == 0, capsys.readouterr().out
    assert " 0 differed" not in capsys.readouterr().out
