"""One client's walk through one cassette: what it asked, what it got, what it left unused.

`session` is a walk and the calls that it saw, `sessions` all that are open, `exchange` one request on its way;
`journal` keeps what became of each. `forking` says where a walk leaves its recording.
"""
