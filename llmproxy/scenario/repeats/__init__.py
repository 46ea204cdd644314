"""Repeated runs of a scenario: their verdict, and its statistics."""
