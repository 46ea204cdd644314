"""Runs on machines of a Ray cluster: one remote runner for suites (`suite.run.run_on_cluster`) and scenarios."""
