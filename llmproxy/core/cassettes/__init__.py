"""Cassettes as files: the folder that is synchronized with the store, and other formats."""
