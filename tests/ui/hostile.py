"""Recordings of somebody who knows that they will be looked at: each text wants to be markup, a link, a command of the terminal, or too much."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from llmproxy.core.traffic.interaction import Chunk, Interaction, Key, Response, Usage
from tests.ui.samples import Block, call, result, says, uses

OUTSIDE = "http://evil.example"
SCRIPT = "window.owned=1;document.title='owned'"
MARKUP = "".join(
    (
        f'"><img src=x onerror="{SCRIPT}"><svg/onload="{SCRIPT}">',
        f"</script></textarea></title><script>{SCRIPT}</script><!--",
        f'<a href="javascript:{SCRIPT}">go</a><iframe srcdoc="<script>parent.{SCRIPT}</script>"></iframe>',
        f"<style>@import url({OUTSIDE}/x.css)</style><link rel=stylesheet href={OUTSIDE}/x.css><base href={OUTSIDE}/>",
        f"<img src={OUTSIDE}/p.png><form action={OUTSIDE}><button>go</button></form><object data={OUTSIDE}></object>",
        f"![x]({OUTSIDE}/p.png) [x](javascript:{SCRIPT}) {{{{constructor.constructor('{SCRIPT}')()}}}} ]]>",
    )
)
UNSEEN = "\x1b[2J\x1b[201~\x00\x07\x9b31m\x7f\u202e\u2066\u200f\ufeff\u2028\ud800x\udc00"
EVIL = MARKUP + UNSEEN
NAMES = ("__proto__", "constructor", "toString", "hasOwnProperty", "valueOf")
"""What every object of JavaScript knows without having it."""
DEEP = 20_000
LONG = 600_000
PIECES = 10_000
SHELL = b"BODY\nBODY_\n\nBODY\ntouch owned\n\x1b[201~\ntouch owned\nBODY"
"""A body that would end early what is pasted into a shell, and the pasting."""
TYPES = (
    "image/svg+xml", "text/html", 'image/png" onerror="x', "image/png;base64,AAAA", "application/pdf", "audio/wav\x00", "IMAGE/PNG", "image/gif",
)  # fmt: skip


def interactions() -> Iterator[Interaction]:
    """Return them all, as one recording each of whose names is hostile, too."""
    name = f"\u202e\x9b\x7f{MARKUP}"[:290]
    user: Block = {"role": "user", "content": EVIL}
    tools = [{"name": EVIL, "description": EVIL, "input_schema": {EVIL: EVIL}}]
    first = call(1, [user], says(uses(EVIL, EVIL, **{EVIL: EVIL}), text=EVIL), at=0, system=EVIL, tools=tools)
    fields = ((f"x-{MARKUP[:40]}", "v"), ("x-a", EVIL.replace("\x00", "")), ("authorization", "Bearer <redacted>"))
    request = replace(first.request, headers=(*first.request.headers, *fields), target=f"/v1/{MARKUP}?{MARKUP}")
    yield replace(first, request=request, upstream=f"javascript:{SCRIPT}//", model=EVIL, operation=MARKUP)
    asked: list[Block] = [user, {"role": "assistant", "content": says(*(uses(each, each) for each in NAMES))}]
    answered = [block for each in NAMES for block in result(each, EVIL)["content"]]
    last = [uses(each, f"again-{each}", **{each: each}) for each in NAMES]
    then = [*asked, {"role": "user", "content": answered}]
    yield call(2, then, says(*last, text="BODY"), at=1, system=EVIL + "2", tools=tools)
    yield call(3, [{"role": "user", "content": "x" * LONG}], says(text="<b>" * (LONG // 300)), at=2)
    deep = call(4, [user], says(text="deep"), at=3)
    nested = b'{"messages": [{"role": "user", "content": ' + b"[" * DEEP + b"]" * DEEP + b"}]}"
    yield replace(deep, request=replace(deep.request, body=nested))
    within: Block = {"role": "assistant", "content": says(uses("deep", "t1"))}
    text = json.dumps({"messages": [user, within, result("t1", "[" * DEEP)]}).encode()
    yield replace(
        deep, request=replace(deep.request, body=text), key=Key(f"v2:{5:064x}"), started_at=deep.started_at + 1
    )
    many = call(6, [user], says(text="m" * PIECES * 12), at=5)
    yield replace(many, response=replace(many.response, chunks=many.response.chunks[:PIECES]))
    svg = base64.b64encode(
        f'<svg xmlns="http://www.w3.org/2000/svg" onload="{SCRIPT}"><script>{SCRIPT}</script></svg>'.encode()
    ).decode()
    pictures: list[Block] = [
        {"type": "image", "source": {"type": "base64", "media_type": kind, "data": svg}} for kind in TYPES
    ]
    pictures += [{"type": "image", "source": {"type": "url", "url": f"{OUTSIDE}/{n}.png"}} for n in range(3)]
    pictures += [{"type": "image_url", "image_url": {"url": url}} for url in (f"{OUTSIDE}/o.png", f"data:text/html,{MARKUP}", f"data:image/svg+xml;base64,{svg}", f"javascript:{SCRIPT}")]  # fmt: skip
    yield call(7, [{"role": "user", "content": [*pictures, {"type": "text", "text": "see"}]}], says(text="seen"), at=6)
    for n, (kind, body) in enumerate(
        ((b"text/html", MARKUP.encode()), (b"application/json", b'{"a": ' + MARKUP.encode()), (b"image/svg+xml", base64.b64decode(svg)), (b"application/octet-stream", bytes(range(256)) * 40))
    ):  # fmt: skip
        odd = call(8 + n, [user], [], at=7 + n)
        made = Response(200, MARKUP[:60], (("content-type", kind.decode()),), (Chunk(1, body),))
        yield replace(odd, response=made, stream=False)
    shell = call(20, [user], says(text="paste me"), at=20)
    yield replace(shell, request=replace(shell.request, body=SHELL))
    strange: list[Any] = [{**user, "role": EVIL}, {"role": None, "content": None}, 7, None]
    far = call(21, strange, says(text=""), at=9e12)
    yield replace(far, usage=Usage(10**300, 0, None, -1), party=EVIL[:40], cassette=name)
    yield call(22, [user], says(text="named"), at=1, cassette=name)
