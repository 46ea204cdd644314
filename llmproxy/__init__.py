"""llmproxy: record any agent's LLM traffic once, replay it for ever."""

import logging

__version__ = "0.2.0"

logging.getLogger(__name__).addHandler(logging.NullHandler())
