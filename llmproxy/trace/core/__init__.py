"""Evalcraft's import path of the values."""
