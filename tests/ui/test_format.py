"""The page shows amounts as the terminal does: one table of examples for both."""

from __future__ import annotations

import json
import shutil
import subprocess

from tests.support.process import ROOT, needed
from tests.test_amount_formatting import COSTS, COUNTS, DURATIONS

FORMAT = ROOT / "llmproxy/ui/static/format.js"
ASK = """
const { counted, duration, money } = await import(process.argv[1]);
const [durations, costs, counts] = JSON.parse(process.argv[2]);
console.log(JSON.stringify([durations.map(duration), costs.map(money), counts.map((each) => counted(...each))]));
"""


def test_the_page_and_the_terminal_have_one_form() -> None:
    node = shutil.which("node") or needed("Node", "node")
    asked = [[ms for ms, _ in DURATIONS], list(COSTS), [each for each, _ in COUNTS]]
    command = [node, "--input-type=module", "-e", ASK, FORMAT.as_uri(), json.dumps(asked)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert json.loads(told) == [[text for _, text in DURATIONS], list(COSTS.values()), [text for _, text in COUNTS]]
