"""How a model is asked: OpenAI's dialect by ourselves, every other by litellm, imported late."""
