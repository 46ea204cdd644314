"""Assertions about rows: setup, new rows, verification, waiting, and cleanup."""
