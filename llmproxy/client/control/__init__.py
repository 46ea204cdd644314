"""The control API from outside: a typed client, what it tells, and the summary for people."""
