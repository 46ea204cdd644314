"""A Ray cluster: found or started, connected to, left. The only module that imports ray."""

from __future__ import annotations

import logging
import os
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from llmproxy.errors import MachineError, SettingsError
from llmproxy.install import requirement

_QUIET = {
    "RAY_raylet_start_wait_time_s": "120",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Under `uv run` it would copy the working folder to every node, and it would report usage."""
_TRIES = 4
_PASSING = "Initialization failure from server"
"""What a busy cluster says to a client now and then, for which it starts a process of its own: the next try finds it started."""
_CLIENT_PORT = 10001
_REACHING = 10.0
"""Seconds."""


def address_of(where: str, env: Mapping[str, str]) -> str:
    """Return what `--on` names as Ray's address; ``local`` for one that is started. Raises SettingsError."""
    if where == "ray":
        return env.get("RAY_ADDRESS", "") or "local"
    scheme, _, host = where.partition("://")
    if scheme == "ray" and host:
        return where
    raise SettingsError(
        f"--on {where!r}: it can be `ray` (one is started here, or RAY_ADDRESS is asked) or ray://HOST:10001."
    )


@contextmanager
def reach_cluster(where: str, batch: str) -> Iterator[tuple[Any, int]]:
    """Open a cluster for a test: the module, and how many tries it took; what was started for it ends with the block.

    Raises:
        MachineError: Ray is not installed, does not answer, or is of another version or Python.

    """
    os.environ.update(_QUIET)
    address = address_of(where, os.environ)
    try:
        ray = the_ray()
    except ImportError as error:
        raise MachineError(
            f"{where} needs Ray, which is not installed.", hint=f"pip install '{requirement('ray')}'"
        ) from error
    tries = connect(ray, where, address, f"llmproxy-{batch}")
    try:
        yield ray, tries
    finally:
        ray.shutdown()


def the_ray() -> Any:  # noqa: ANN401 - the module, which has no types
    """Import it. Raises ImportError."""
    return import_module("ray")


def connect(ray: Any, where: str, address: str, namespace: str, sleep: Callable[[float], None] = time.sleep) -> int:  # noqa: ANN401 - the module
    """Connect to a cluster, and return how many tries it took. Raises MachineError."""
    reach(where, address)
    more: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    for number in range(1, _TRIES + 1):
        try:
            with warnings.catch_warnings(action="ignore"):  # what Ray warns of it raises too, and we say it
                ray.init(address, namespace=namespace, log_to_driver=False, logging_level=logging.CRITICAL, **more)
        except Exception as error:
            if _PASSING not in str(error) or number == _TRIES:
                raise build_refusal(where, error) from error
            ray.shutdown()
            sleep(number)
        else:
            return number
    raise AssertionError("a try returns or raises")


def reach(where: str, address: str) -> None:
    """See that somebody listens at an address: Ray itself would try for many minutes. Raises MachineError."""
    parts = urlsplit(address if "://" in address else f"ray://{address}")
    try:
        host, port = parts.hostname or "", parts.port or (_CLIENT_PORT if "://" in address else 0)
        if port:
            socket.create_connection((host, port), timeout=_REACHING).close()
    except (OSError, ValueError) as error:
        named = where if where == address else f"{address} (RAY_ADDRESS)"
        raise MachineError(
            f"no cluster answers at {named}: {getattr(error, 'strerror', None) or error}.",
            hint="`ray status` on its head says whether it runs; --on ray://HOST:10001 wants the port of its clients. Without"
            " RAY_ADDRESS, --on ray starts one here.",
        ) from error


def build_refusal(where: str, error: Exception) -> MachineError:
    """Return why a cluster cannot be used, in words."""
    text = str(error).strip()
    if "ersion mismatch" in text or "Python version" in text or "version of Ray" in text.lower():
        return MachineError(
            f"the cluster at {where} is of another Ray or Python than this one:\n{text}",
            hint="Both sides need the same Ray and the same Python: run the test with the cluster's, or start the cluster with this one's.",
        )
    return MachineError(
        f"the cluster at {where} cannot be used: {text.splitlines()[0] if text else type(error).__name__}"
    )
