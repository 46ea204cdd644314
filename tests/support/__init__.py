"""Start what a test needs as real processes: the proxy, other people's fake provider, SDK drivers."""

from __future__ import annotations

from .aimock import Aimock, aimock
from .process import Process, free_port, needed
from .proxy import Listening, Near, Proxy, near, proxy

__all__ = ["Aimock", "Listening", "Near", "Process", "Proxy", "aimock", "free_port", "near", "needed", "proxy"]
