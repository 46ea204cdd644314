"""One client's walk through one cassette: what it asked, what it got, what it left unused.

`session` is a walk, `sessions` all that are open, `exchange` one request on its way; `calls` are those that have ended, which
`journal` keeps too. `forking` and `parting` say where a walk leaves its recording.
"""
