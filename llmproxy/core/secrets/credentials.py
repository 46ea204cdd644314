"""The credentials that a run has seen, and where they stand in a text: as they are, and in the ways in which programs write them on.

There may be any number: tokens rotate with each request, and each counts for as long as the process lives. A few are looked for as they are;
of many only eight characters each are, among the runs of key characters of the text, so that a text costs the same however many there are.
"""

from __future__ import annotations

import json
import re
import threading
from binascii import b2a_base64
from collections import OrderedDict
from typing import TYPE_CHECKING
from urllib.parse import quote

from llmproxy.core.secrets.find import has_border, runs_of, shapes
from llmproxy.core.secrets.learned import GRAM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

FREE = 16
"""From this length on a credential is found within words as well."""
_FEW = 24
"""Forms that are looked for one by one."""
_MOST = 100_000
"""Forms that are remembered; the first are forgotten then."""
_MOST_WAITING = 8_000
"""Credentials that are not in the index yet: of more the first would be forgotten at once."""
_WITHOUT_SHAPE = 256
"""When so many forms are known, credentials that are found by their shape need none."""
_ANCHOR = GRAM
"""Characters by which one of many is found."""
_PLAIN = re.compile(r"[A-Za-z0-9._~\-]{16,}")
"""A credential that quoting leaves as it is."""
_LEAST_ENCODED = 12
_ENOUGH = 24
"""Characters at the end of a credential that say how its base64 ends."""
_URLSAFE = {43: 45, 47: 95}


def forms(secret: str) -> Iterator[str]:
    """Yield a secret as it is, inside JSON, an URL or HTML, and in base64 and hexadecimal as a part of something longer."""
    data = secret.encode("utf-8", "surrogatepass")
    yield secret
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    if len(secret) < FREE:
        return
    import html  # its table of entities is 2 ms of a start in which no secret was met yet

    yield quote(secret, safe="", errors="replace")
    yield html.escape(secret)
    for lead in range(3):
        inner = _encode_core(data, lead)
        if len(inner) >= _LEAST_ENCODED:
            yield inner
            yield inner.translate(_URLSAFE)
    yield data.hex()


def tails(secret: str) -> Sequence[str | None]:
    """Return characters without which none of a credential's forms can stand in a text; None for a form that has no such."""
    if not _PLAIN.fullmatch(secret):
        return [_anchor(form) if len(form) >= FREE else None for form in forms(secret)]
    data = secret[-_ENOUGH:].encode()  # the same for the usual ones, in a tenth of the time
    if len(data) < _ENOUGH:
        coded = "".join([_encode_core(data, lead)[-_ANCHOR:] for lead in range(3)])
    else:
        three = (b2a_base64(bytes(lead) + data, newline=False)[lead + 24 : lead + 32] for lead in range(3))
        coded = b"".join(three).decode()
    found = [secret[-_ANCHOR:], data[-(_ANCHOR // 2) :].hex(), coded[:8], coded[8:16], coded[16:]]
    if "+" in coded or "/" in coded:
        safe = coded.translate(_URLSAFE)
        found += [safe[:8], safe[8:16], safe[16:]]
    return found


def _encode_core(data: bytes, lead: int) -> str:
    """Return what of a secret's base64 does not depend on what stands around it, `lead` bytes behind a border of three."""
    coded = b2a_base64(bytes(lead) + data, newline=False).decode()
    return coded[(0, 2, 3)[lead] : (lead + len(data)) * 8 // 6]


class KnownSecrets:
    """An index of credentials. Added to by one thread, read by several.

    What is added is put into the index when a text is searched next: where tokens come by the thousand and all they ask is known, none is.
    """

    def __init__(self) -> None:
        self._all: OrderedDict[str, None] = OrderedDict()
        self._few: tuple[str, ...] = ()
        self._anchors: dict[str, tuple[str, ...]] = {}
        self._short: tuple[str, ...] = ()
        """Forms in which there is no run to look into."""
        self._waiting: OrderedDict[str, None] = OrderedDict()
        """What is to be put into the index; each until it is there."""
        self._lock = threading.Lock()
        self.hear_text: Callable[[str], None] | None = None
        """Hears of each text that is searched."""

    def __contains__(self, secret: str) -> bool:
        return secret in self._all or secret in self._waiting

    def __len__(self) -> int:
        """Count the forms, and what is not taken into forms yet."""
        return len(self._all) + len(self._waiting)

    def add(self, secret: str) -> None:
        self._waiting[secret] = None
        if len(self._waiting) > _MOST_WAITING:
            self._waiting.popitem(last=False)

    def _settle(self) -> None:
        with self._lock:  # whoever comes meanwhile waits until all of it can be found
            for secret in list(self._waiting):
                self._put(secret)
                self._waiting.pop(secret, None)

    def _put(self, secret: str) -> None:
        if len(self._all) > _WITHOUT_SHAPE and shapes(secret) == [(0, len(secret))]:
            self._all[secret] = None  # it is found by its shape
            return
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
            self._forget(self._all.popitem(last=False)[0])

    def _forget(self, form: str) -> None:
        if (anchor := _anchor(form)) is not None and form in self._anchors.get(anchor, ()):
            left = tuple(other for other in self._anchors[anchor] if other != form)
            if left:
                self._anchors[anchor] = left
            else:
                del self._anchors[anchor]

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return where any of them stands, in no order; short ones only as a word of their own."""
        if self._waiting:
            self._settle()
        if self.hear_text is not None:
            self.hear_text(text)
        found = [span for form in self._few if form in text for span in _places(form, text)]
        found += [span for form in self._short if form in text for span in _places(form, text)]
        if self._anchors:
            for form in self._find_anchored(text):
                found += _places(form, text)
        return found

    def _find_anchored(self, text: str) -> set[str]:
        anchors, found = self._anchors, set[str]()
        for start, end in runs_of(text).spans:
            run = text[start:end]
            for at in range(len(run) - _ANCHOR + 1):
                if run[at : at + _ANCHOR] in anchors:
                    found.update(form for form in anchors.get(run[at : at + _ANCHOR], ()) if form in text)
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
