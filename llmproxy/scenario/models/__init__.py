"""Model calls: OpenAI's dialect by ourselves, every other by litellm, imported late."""
