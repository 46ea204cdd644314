"""Cassettes as files: the folder that is kept in step with the store, and other formats."""
