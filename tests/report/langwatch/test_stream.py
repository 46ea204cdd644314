"""A stream that hands on events, in the manner of Rx."""

# ruff: noqa: ANN401

from __future__ import annotations

from typing import Any

from llmproxy.report.langwatch.stream import Stream


def test_listeners_hear_what_comes_after_them() -> None:
    """In order, until the end."""
    stream = Stream()
    first: list[str] = []
    second: list[str] = []
    ends: list[int] = []
    stream.subscribe(first.append, None, lambda: ends.append(1))
    stream.on_next("a")
    stream.subscribe(second.append)
    stream.on_next("b")
    stream.on_completed()
    stream.on_completed()
    stream.on_next("c")
    assert (first, second, ends) == (["a", "b"], ["b"], [1])


def test_an_observer_object_may_listen() -> None:
    """As Rx allows it."""

    class Observer:
        def __init__(self) -> None:
            self.heard: list[Any] = []

        def on_next(self, event: Any) -> None:
            self.heard.append(event)

        def on_error(self, error: Exception) -> None: ...

        def on_completed(self) -> None:
            self.heard.append("end")

    observer, stream = Observer(), Stream()
    stream.subscribe(observer)  # type: ignore[arg-type]
    stream.on_next(1)
    stream.on_completed()
    assert observer.heard == [1, "end"]


def test_a_subscription_can_end() -> None:
    """Twice does no harm; a stream nobody listens to says so."""
    stream = Stream()
    heard: list[int] = []
    listening = stream.subscribe(heard.append)
    assert stream.heard
    listening.dispose()
    listening.dispose()
    stream.on_next(1)
    assert (heard, stream.heard) == ([], False)


def test_who_comes_late_hears_the_end() -> None:
    """And nothing else."""
    stream = Stream()
    ends: list[int] = []
    stream.on_completed()
    stream.subscribe(None, None, lambda: ends.append(1))
    assert ends == [1]
