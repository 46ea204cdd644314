"""A suite is run: the run_context of a scenario is opened, its steps are taken, its verdict is given."""
