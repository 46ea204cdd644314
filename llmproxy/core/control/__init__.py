"""The control API as pure functions: a table of calls, what each takes and gives. The proxy brings the bytes."""
