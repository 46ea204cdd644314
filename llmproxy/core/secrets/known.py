"""The credentials that a run has seen, and where they stand in a text: as they are, and in the ways in which programs write them on.

There may be any number: tokens rotate with each request, and each counts for as long as the process lives. A few are looked for as they are;
of many only eight characters each are, among the runs of key characters of the text, so that a text costs the same however many there are.
"""

from __future__ import annotations

import base64
import html
import json
from typing import TYPE_CHECKING
from urllib.parse import quote

from llmproxy.core.secrets.find import has_border, runs_of

if TYPE_CHECKING:
    from collections.abc import Iterator

FREE = 16
"""From this length on a credential is found within words as well."""
_FEW = 24
"""Forms that are looked for one by one."""
_MOST = 100_000
"""Forms that are remembered; the first are forgotten then."""
_ANCHOR = 8
"""Characters by which one of many is found."""
_LEAST_ENCODED = 12


def forms(secret: str) -> Iterator[str]:
    """Yield a secret as it is, inside JSON, an URL or HTML, and in base64 and hexadecimal as a part of something longer."""
    data = secret.encode("utf-8", "surrogatepass")
    yield secret
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    if len(secret) < FREE:
        return
    yield quote(secret, safe="", errors="replace")
    yield html.escape(secret)
    for lead in range(3):
        coded = base64.b64encode(bytes(lead) + data).decode()
        inner = coded[(0, 2, 3)[lead] : (lead + len(data)) * 8 // 6]
        if len(inner) >= _LEAST_ENCODED:
            yield inner
            yield inner.translate({43: 45, 47: 95})
    yield data.hex()


class Known:
    """An index of credentials. Added to by one thread, read by several."""

    def __init__(self) -> None:
        """Know nothing."""
        self._all: dict[str, None] = {}
        self._few: tuple[str, ...] = ()
        self._anchors: dict[str, tuple[str, ...]] = {}
        self._short: tuple[str, ...] = ()
        """Forms in which there is no run to look into."""

    def __contains__(self, secret: str) -> bool:
        """Tell whether a credential is known."""
        return secret in self._all

    def __len__(self) -> int:
        """Count the forms."""
        return len(self._all)

    def add(self, secret: str) -> None:
        """Note a credential."""
        new = [form for form in dict.fromkeys(forms(secret)) if form not in self._all]
        self._all.update(dict.fromkeys(new))
        for form in new:
            if len(self._few) < _FEW:
                self._few = (*self._few, form)
            elif len(form) < FREE or (anchor := _anchor(form)) is None:
                self._short = (*self._short[-4 * 256 :], form)
            else:
                self._anchors[anchor] = (*self._anchors.get(anchor, ()), form)
        while len(self._all) > _MOST:
            self._forget(next(iter(self._all)))

    def _forget(self, form: str) -> None:
        del self._all[form]
        if (anchor := _anchor(form)) is not None and form in self._anchors.get(anchor, ()):
            left = tuple(other for other in self._anchors[anchor] if other != form)
            if left:
                self._anchors[anchor] = left
            else:
                del self._anchors[anchor]

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return where any of them stands, in no order; short ones only as a word of their own."""
        found = [span for form in self._few if form in text for span in _places(form, text)]
        found += [span for form in self._short if form in text for span in _places(form, text)]
        if self._anchors:
            for form in self._anchored(text):
                found += _places(form, text)
        return found

    def _anchored(self, text: str) -> set[str]:
        anchors, found = self._anchors, set[str]()
        for start, end in runs_of(text).spans:
            run = text[start:end]
            for at in range(len(run) - _ANCHOR + 1):
                if run[at : at + _ANCHOR] in anchors:
                    found.update(form for form in anchors[run[at : at + _ANCHOR]] if form in text)
        return found


def _anchor(form: str) -> str | None:
    """Return the last characters of the first long run in a form: how keys begin is what they have in common."""
    runs = runs_of(form).spans
    return form[runs[0][1] - _ANCHOR : runs[0][1]] if runs else None


def _places(form: str, text: str) -> Iterator[tuple[int, int]]:
    at = text.find(form)
    while at >= 0:
        end = at + len(form)
        if len(form) >= FREE or (has_border(text, at) and not text[end : end + 1].isalnum()):
            yield at, end
        at = text.find(form, end if len(form) >= FREE else at + 1)
