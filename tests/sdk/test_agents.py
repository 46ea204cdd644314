"""Small agents on real SDKs, whose tools answer something else on every run: recorded, tried once, replayed in another place.

Two of them here, one in Python and one in Node; `scripts/lab/sdk-agents` runs one on each SDK of the matrix.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support import needed

from .agents import AGENTS, TAKEN, SdkAgent, SdkLab

pytestmark = pytest.mark.sdk
HERE = ("anthropic-py", "ai-sdk")


@pytest.mark.parametrize("agent", [pytest.param(each, id=each.name) for each in AGENTS if each.name in HERE])
def test_every_call_is_a_hit_after_one_recording_and_one_trial(
    agent: SdkAgent, environments: dict[str, str], tmp_path: Path
) -> None:
    """A uuid, an integer key, times, a temporary file, a port, shuffled keys, two sub-agents at once; numbers and names by name."""
    if environments[agent.environment]:
        needed(environments[agent.environment])
    lab = SdkLab(agent, tmp_path)
    recorded = lab.record()
    assert (recorded.code, recorded.count("recorded")) == (0, recorded.upstream), recorded.stderr
    time.sleep(1)  # the agent's clock tells seconds: in the same one nothing could be learned of it
    tried = lab.learn()
    assert tried.code == 0, tried.stderr
    assert "14 hits, 0 misses" in tried.stderr
    replayed = lab.replay()
    assert lab.problems(replayed, recorded) == [], replayed.stderr[-3000:]
    assert all(f" {name}" in replayed.stderr for name in TAKEN), replayed.stderr
