"""The control API as pure functions: a table of endpoints with their inputs and outputs. The proxy does the I/O."""
