"""What can be asked for, and what is said of what cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.core.faults import KINDS, PRESETS, BadFaults, load_faults, read_faults


@pytest.mark.parametrize("name", [*KINDS, *PRESETS])
def test_every_kind_and_preset_goes_by_its_name(name: str, tmp_path: Path) -> None:
    """And comes back the same from what it says of itself."""
    found = load_faults(name, tmp_path)
    assert found.rules
    assert read_faults(found.to_json()).rules == found.rules


def test_a_kind_at_a_call(tmp_path: Path) -> None:
    """In short for a rule with that call."""
    assert load_faults("reset@3", tmp_path).rules == read_faults([{"kind": "reset", "call": 3}]).rules


def test_a_file_in_every_form(tmp_path: Path) -> None:
    """A mapping, a list, one rule; YAML or JSON; the seed of the flag counts above the file's."""
    path = tmp_path / "f.yaml"
    for text in ("seed: 7\nfaults: [{kind: reset}]", "[{kind: reset}]", "kind: reset", '{"faults": ["reset"]}'):
        path.write_text(text)
        assert [rule.kind.name for rule in load_faults("f.yaml", tmp_path).rules] == ["reset"]
    path.write_text("seed: 7\nfaults: [reset]")
    assert load_faults("f.yaml", tmp_path).seed == 7
    assert load_faults("f.yaml", tmp_path, seed=8).seed == 8


@pytest.mark.parametrize(("asked", "said"), [
    ("http-428", "did you mean 'http-429'"),
    ("rate-limit", "did you mean 'rate-limited'"),
    ("xyzzy", "is no preset, no kind and no file"),
    ("resett@3", "there is no kind 'resett' of fault; did you mean 'reset'"),
    ("sweep", "llmproxy run --faults sweep"),
    ("nowhere.yaml", "cannot read nowhere.yaml: No such file"),
    (".", "is no preset, no kind and no file"),
])  # fmt: skip
def test_what_is_no_fault_is_refused_with_what_is_near(asked: str, said: str, tmp_path: Path) -> None:
    """Never taken for something else."""
    with pytest.raises(BadFaults) as caught:
        load_faults(asked, tmp_path)
    assert said in str(caught.value)


@pytest.mark.parametrize(("text", "said"), [
    ("faults: [", "is no YAML at line 1, column 10"),
    ("faults:\n\t- a", "is no YAML at line 2"),
    ("just words", "there is no kind 'just words'"),
    ("", "no list of `faults`, but nothing"),
    ("42", "no list of `faults`, but 42"),
    ("rules: []", "no list of `faults`"),
    ("faults: reset", "`faults` is 'reset'; it is a list"),
    ("faults: [{}]", "names no `kind`"),
    ("faults: []", "holds no rule, so no call would meet a fault"),
    ("[]", "holds no rule"),
    (f"faults: [{'reset, ' * 1001}reset]", "1002 rules; at most 1000 are read"),
    ("faults: [{kind: reset-after, chunk: -1}]", "it is a whole number from 0 to 1048576"),
    ("faults: [{kind: [a]}]", "no kind a list of fault"),
    ("faults: [{kind: reset, cal: 3}]", "unknown member 'cal'; did you mean 'call'"),
    ("faults: [{kind: reset, retry_after: 3}]", "unknown member 'retry_after'"),
    ("faults: [{kind: http-429, retry_after: soon}]", "retry_after is 'soon'; it is a number from 0 to 3600"),
    ("faults: [{kind: http-429, retry_after: .nan}]", "retry_after is nan"),
    ("faults: [{kind: reset, probability: 2}]", "probability is 2"),
    ("faults: [{kind: reset, call: 0}]", "call is 0"),
    ("faults: [{kind: reset, call: true}]", "call is True"),
    ("faults: [{kind: reset, model: 4}]", "model is 4; it is a text"),
    ("faults: [{kind: reset, times: 0}]", "times is 0"),
    ("faults: [{kind: reset, provider: opnai}]", "no provider 'opnai'; did you mean 'openai'"),
    ("faults: [{kind: reset, channel: htpp}]", "no channel 'htpp'; did you mean 'http'"),
    ("faults: [{kind: reset, channel: websocket}]", "no channel 'websocket'; did you mean transport: websocket"),
    ("faults: [{kind: reset, transport: stdoi}]", "no transport 'stdoi'; did you mean 'stdio'"),
    (
        "faults: [{kind: reset, transport: stdio}]",
        "reset meets no call whose transport is stdio, only http and websocket",
    ),
    ("faults: [{kind: mcp-error, channel: llm}]", "mcp-error meets no call whose channel is llm, only mcp"),
    ("faults: [reset]\nsed: 1", "unknown member 'sed'; did you mean 'seed'"),
    ("faults: [reset]\nseed: x", "seed is 'x'; it is a whole number"),
    ("faults: [{kind: reset-after, chunk: 1.5}]", "chunk is 1.5; it is a whole number"),
    ("a: !!python/object:os.system x", "is no YAML"),
    ("[" * 5000, "YAML"),
    ("faults: [2024-99-99]", "YAML"),
])  # fmt: skip
def test_a_file_that_cannot_be_meant_says_where_and_why(text: str, said: str, tmp_path: Path) -> None:
    """With the file's name, the rule's number and what would be right."""
    (tmp_path / "f.yaml").write_text(text)
    with pytest.raises(BadFaults) as caught:
        load_faults("f.yaml", tmp_path)
    assert said in str(caught.value)
    assert "f.yaml" in str(caught.value)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    """A picture is no file of faults."""
    (tmp_path / "f.yaml").write_bytes(b"faults: \xff")
    with pytest.raises(BadFaults, match="is no text: byte 8 is not UTF-8"):
        load_faults("f.yaml", tmp_path)


def test_a_provider_of_the_users_own_may_be_named() -> None:
    """Only what is nearly a provider's name is taken for a slip."""
    assert read_faults([{"kind": "reset", "provider": "gpu-box"}]).rules
