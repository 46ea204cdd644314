"""Header fields that change no more and are looked up often: mitmproxy asks for the framing of an answer with each of its chunks."""

from __future__ import annotations

from mitmproxy.http import Headers

Fields = tuple[tuple[bytes, bytes], ...]


class Settled(Headers):
    """mitmproxy's header fields, read into a table at the first question and again when they were changed after all."""

    def __init__(self, fields: Fields) -> None:
        """Take names and values, which must be bytes."""
        self.fields = fields
        self._read: Fields | None = None
        self._table: dict[str, str] = {}

    def _read_table(self) -> dict[str, str]:
        if self._read is not self.fields:
            self._table, self._read = {}, self.fields
            for name, value in self.fields:
                low, text = name.decode("utf-8", "surrogateescape").lower(), value.decode("utf-8", "surrogateescape")
                self._table[low] = f"{self._table[low]}, {text}" if low in self._table else text
        return self._table

    def __getitem__(self, name: str | bytes) -> str:
        """Return the field's value, several folded into one. Raises KeyError."""
        return self._read_table()[_text(name)]

    def get(self, name: str | bytes, default: str | None = None) -> str | None:  # type: ignore[override]
        """Return the field's value, or `default`."""
        return self._read_table().get(_text(name), default)

    def __contains__(self, name: object) -> bool:
        """Tell whether there is such a field."""
        return isinstance(name, str | bytes) and _text(name) in self._read_table()


def _text(name: str | bytes) -> str:
    return (name if isinstance(name, str) else name.decode("utf-8", "surrogateescape")).lower()
