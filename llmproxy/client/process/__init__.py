"""Processes: a proxy of our own, the one to work with, and the command that is run beside it."""
