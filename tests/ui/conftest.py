"""One browser for all journeys of a worker, and the viewer on a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from llmproxy.cli.ui import make_viewer_query_function
from llmproxy.core.store.store import Store
from llmproxy.protocol import UI_PREFIX
from llmproxy.ui.serve import make_viewer_server
from tests.support.browser import Browser, Page
from tests.support.recordings import reopened
from tests.support.services import serving
from tests.ui import samples


@contextmanager
def viewing(path: Path) -> Iterator[str]:
    """Serve the viewer on a store; yields the address with its token."""
    start = {"store": str(path), "start": ""}
    with serving(make_viewer_server(0, "the-token", make_viewer_query_function(path), start)) as url:
        yield f"{url}{UI_PREFIX}#token=the-token"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with reopened(samples.store(tmp_path / "x.db")) as opened:
        yield opened


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with Browser() as running:
        yield running


@pytest.fixture(scope="session")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of the viewer on the sample recordings."""
    with viewing(samples.store(tmp_path_factory.mktemp("viewer") / "x.db")) as url:
        yield url


def fits(page: Page, width: int, at: str) -> None:
    """See that a view is no wider than its window, and that all that is pressed has a name and stands in nothing else."""
    assert page.js("document.documentElement.scrollWidth") <= width, at
    nameless = "[...document.querySelectorAll('button, a, input, select, [role=tab], [role=listbox]')].filter((each) => !(each.innerText || each.ariaLabel || each.title || each.labels?.length))"
    assert page.js(f"{nameless}.length") == 0, at
    inside = "document.querySelectorAll('summary button, summary a, button button, a button, [role=img] button')"
    assert page.js(f"{inside}.length") == 0, f"{at}: a control inside of another is not told by a screen reader"
