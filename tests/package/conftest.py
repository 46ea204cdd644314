"""The package is built once for a run, and each environment made when the first test asks for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.process import needed

from .environments import ENVIRONMENTS, Built, build, install_all

FEW = 3
"""Tests for which environments are made one by one, as they are asked for."""


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def installed(built: Built, request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """Return what gives an environment's folder of programs; of more than a few tests, all are made at once."""
    made = install_all(ENVIRONMENTS if len(request.session.items) > FEW else (), built)

    def give(name: str) -> Path:
        if name not in made:
            made.update(install_all([name], built))
        return made[name] or needed(f"Python {ENVIRONMENTS[name].python}")

    return give
