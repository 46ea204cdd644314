"""YAML suites."""
