"""What SDKs do with faults, as the table of docs/fault-kinds.md says it; the rest of it is made by scripts/lab/sdk-faults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llmproxy.core.faults.kinds import KINDS
from llmproxy.protocol import Channel
from tests.support import needed

from .environments import ROOT
from .faults import FaultLab, cell, outcome_in, tables, word
from .matrix import NEWEST

NAMES = ("openai-py", "fetch")
KINDS_HERE = ("http-429", "http-500", "reset", "refused", "cut-frame", "early-end", "truncated-arguments")


def page_rows() -> dict[str, list[str]]:
    page = (ROOT / "docs" / "fault-kinds.md").read_text("utf-8")
    made = re.search(r"<!-- sdks: .*?-->\n(.*?)<!-- /sdks -->", page, re.DOTALL)
    assert made is not None
    cells = [[each.strip() for each in line.strip("|").split("|")] for line in made[1].splitlines() if line]
    return {name: row[1:] for row in cells for name in row[0].split(", ")}


def test_the_page_has_each_kind_and_each_sdk() -> None:
    """No client of the matrix is missing, and no kind that one can meet."""
    rows = page_rows()
    clients = [client.name for client in NEWEST]
    met = [name for name, kind in KINDS.items() if Channel.LLM in kind.channels]
    assert [name for name in met if f"`{name}`" not in rows] == []
    others = [part for row in rows.values() for part in row[0].split("; ")[1:]]
    assert {name for part in others for name in part.split(": ")[1].split(", ")} < set(clients)
    page = (ROOT / "docs" / "fault-kinds.md").read_text("utf-8")
    assert [name for name in clients if name not in page.partition("## What SDKs do")[2].partition("<!--")[0]] == []


@pytest.mark.sdk
def test_two_sdks_do_what_the_page_says(tmp_path: Path, environments: dict[str, str]) -> None:
    """One that tries again and one that does not; a cut stream is seen as one by both, and an early end by none."""
    clients = tuple(client for client in NEWEST if client.name in NAMES)
    if missing := [environments[each.driver.environment] for each in clients if environments[each.driver.environment]]:
        needed(missing[0])
    lab = FaultLab(tmp_path, clients, KINDS_HERE).perform()
    rows = page_rows()
    found = {(kind, client.name): cell(lab, client, kind) for client in clients for kind in KINDS_HERE}
    assert found == {(kind, name): outcome_in(rows[f"`{kind}`"][0], name) for kind, name in found}
    assert [word(lab, client, "stream", "cut-frame") for client in clients] == ["raises", "raises"]
    assert re.search(r"`refused`.* \| retries; raises: fetch \|", tables(lab))
