"""Builds the SDK environments, performs the acts once for what was selected, and prints the matrix at the end."""

from __future__ import annotations

import pytest

from .drivers import DRIVERS, UPSTREAMS, Driver
from .environments import prepare
from .lab import Lab
from .matrix import CLIENTS, Client, Matrix, table

LABS = pytest.StashKey[dict[str, Lab]]()
MATRIX = pytest.StashKey[tuple[Matrix, dict[str, str]]]()


def selected(session: pytest.Session, upstream: str) -> tuple[Driver, ...]:
    """List the drivers that the selected tests of this upstream name."""
    names: set[str] = set()
    for item in session.items:
        params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        driver = params.get("driver")
        if params.get("upstream") == upstream:
            names.update([driver.name] if isinstance(driver, Driver) else [d.name for d in DRIVERS])
    return tuple(d for d in DRIVERS if d.name in names and d.cases_on(upstream))


@pytest.fixture(scope="session")
def environments() -> dict[str, str]:
    """Why each environment is missing; empty text if it is there."""
    return prepare()


@pytest.fixture(scope="session")
def labs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, environments: dict[str, str]
) -> dict[str, Lab]:
    """What happened, by upstream; an upstream or driver whose environment is missing is left out."""
    there = {name for name, problem in environments.items() if not problem}
    performed = request.config.stash.setdefault(LABS, {})
    for upstream in UPSTREAMS:
        drivers = tuple(d for d in selected(request.session, upstream) if d.environment in there)
        if drivers and (upstream == "provider" or "node" in there):
            performed[upstream] = Lab(upstream, tmp_path_factory.mktemp(f"sdk-{upstream}"), drivers).perform()
    return performed


@pytest.fixture(scope="session")
def matrix(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, environments: dict[str, str]
) -> Matrix:
    """What happened in the matrix, with the clients that the selected tests name and whose environment is there."""
    callspecs = [getattr(item, "callspec", None) for item in request.session.items]
    named = {each.params["client"] for each in callspecs if each and isinstance(each.params.get("client"), Client)}
    clients = tuple(c for c in CLIENTS if (c in named or not named) and not environments[c.driver.environment])
    made = Matrix(tmp_path_factory.mktemp("sdk-matrix"), clients)
    if clients:
        made.perform()
        request.config.stash[MATRIX] = made, environments
    return made


def verdict(lab: Lab, driver: Driver, case: str) -> str:
    recorded, replayed, again = (
        outcomes.get(driver.name, {}).get(case, {}) for outcomes in (lab.recorded, lab.replayed, lab.again)
    )
    if "result" not in recorded:
        return "FAILED"
    return "ok" if recorded["result"] == replayed.get("result") == again.get("result") else "DIFFERS"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print client x case: what was recorded and replayed alike."""
    for lab in config.stash.get(LABS, {}).values():
        terminalreporter.section(f"SDKs recorded from {lab.upstream} and replayed without it and without a key")
        terminalreporter.line(
            f"{lab.asked_upstream} requests upstream while recording, {lab.late_connections} in replay"
        )
        for driver in lab.drivers:
            verdicts = {case: verdict(lab, driver, case) for case in driver.cases_on(lab.upstream)}
            good = [case for case, word in verdicts.items() if word == "ok"]
            bad = [f"{word} {case}" for case, word in verdicts.items() if word != "ok"]
            seconds = sum(line["seconds"] for line in lab.replayed.get(driver.name, {}).values())
            text = f"{driver.name:<15}{len(good):>3}/{len(verdicts):<3} {seconds:5.2f} s  {' '.join(good)}"
            terminalreporter.line(text, green=not bad)
            if bad:
                terminalreporter.line(f"{'':<15}        {', '.join(bad)}", red=True)
    if MATRIX in config.stash:
        terminalreporter.section(
            "client x (base URL, interception) x (plain, stream, tools, error): each replays what the other way recorded"
        )
        for line in table(*config.stash[MATRIX]):
            terminalreporter.line(line, red="NO " in line)
