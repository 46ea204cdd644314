"""The control API as pure functions: a table of calls, what each takes and gives. The shell brings the bytes."""
