"""What a replay of a trace returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llmproxy.trace.files.cassette import Cassette


@dataclass
class AgentRun:
    cassette: Cassette
    success: bool = True
    error: str | None = None
    replayed: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return its four members."""
        return {
            "cassette": self.cassette.to_dict(),
            "success": self.success,
            "error": self.error,
            "replayed": self.replayed,
        }
