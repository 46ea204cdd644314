"""Cassettes that begin as another one, and what is swapped in them: results of tools, answers of the model."""
