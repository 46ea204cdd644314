"""Pictures and sound: out of every dialect's form, and nothing that a browser would run."""

from __future__ import annotations

import pytest

from llmproxy.ui.calls import find_media_in_json
from tests.ui.samples import PICTURE

PNG = {"type": "image/png", "data": PICTURE}


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}},
        {"type": "input_image", "image_url": f"data:image/png;base64,{PICTURE}"},
        {"inlineData": {"mimeType": "image/png", "data": PICTURE}},
        {"image": {"format": "png", "source": {"bytes": PICTURE}}},
    ],
    ids=["anthropic", "openai", "responses", "gemini", "bedrock"],
)
def test_a_picture_is_found_in_every_dialect(block: object) -> None:
    """Each carries the same bytes in a form of its own."""
    found = find_media_in_json({"role": "user", "content": [block]})
    assert found == [PNG] or [each["data"] for each in found] == [PICTURE]


def test_sound_is_found() -> None:
    block = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
    assert find_media_in_json([block]) == [{"type": "audio/wav", "data": "UklGRg=="}]


@pytest.mark.parametrize(
    "url",
    [
        "data:image/svg+xml;base64,PHN2Zz4=", "data:text/html;base64,PHN2Zz4=", "data:image/png;base64,<script>",
        "https://example.com/x.png", "javascript:alert(1)",
    ],
)  # fmt: skip
def test_what_could_run_or_be_fetched_is_none(url: str) -> None:
    """A document, an address and what is no base64 stay text."""
    assert find_media_in_json({"type": "image_url", "image_url": {"url": url}}) == []


def test_a_deep_body_ends() -> None:
    """Bodies come from strangers: depth is bounded."""
    tree: object = "x"
    for _ in range(5000):
        tree = [tree]
    assert find_media_in_json(tree) == []
