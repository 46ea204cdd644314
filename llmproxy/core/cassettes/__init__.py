"""Cassettes as files: the folder that is kept in step with the store, other formats, and the difference of two."""
