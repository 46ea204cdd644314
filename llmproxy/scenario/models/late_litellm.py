"""litellm, imported late and quietly."""

from __future__ import annotations

import os
from typing import Any

from llmproxy.errors import MachineError
from llmproxy.install import requirement


def import_litellm() -> Any:  # noqa: ANN401 (a module)
    """Return litellm; its first import takes seconds, so do not call this in an event loop.

    Raises:
        MachineError: it is not installed.

    """
    for name in ("LITELLM_LOCAL_MODEL_COST_MAP", "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS"):
        os.environ.setdefault(name, "True")
    try:
        import litellm
    except ImportError as error:
        raise MachineError(
            f"a model is to be called, and litellm cannot be imported ({error}).",
            hint=f"pip install '{requirement('runner')}'",
        ) from error
    litellm.suppress_debug_info = True
    return litellm
