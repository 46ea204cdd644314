"""New suites: a first one, and one out of a recorded session."""
