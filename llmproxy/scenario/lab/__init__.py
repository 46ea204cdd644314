"""Experiments on recorded runs: judging again, calibrating a judge with labels, comparing, open loops."""
