"""Execution of suites: opening resources, running steps, deciding the verdict."""
