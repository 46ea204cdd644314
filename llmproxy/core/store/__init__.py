"""The database of recordings: SQLite, optimized for reading."""
