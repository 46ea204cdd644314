"""Evalcraft's import path of the models."""
