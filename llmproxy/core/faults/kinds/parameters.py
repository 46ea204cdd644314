"""Parameters that several kinds take."""

from __future__ import annotations

from llmproxy.core.faults.values import Parameter

CHUNK = Parameter("chunk", 0, "events of a stream that come before it; 0: half of the answer", 0, 1 << 20, whole=True)
