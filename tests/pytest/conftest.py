"""A running proxy, shared as by the tests of the client."""

from __future__ import annotations

from tests.client.conftest import px

__all__ = ["px"]
