"""Experiments beside a run: judge again, calibrate a judge with labels, compare, answer open questions."""
