"""A suite is run: the world of a scenario is opened, its steps are taken, its verdict is given."""
