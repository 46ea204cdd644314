"""Assertions of a step: tools, usage, answers, entities."""
