"""One client's walk through one cassette: what it asked, what it got, what it left unused.

`session` is a walk, `sessions` all that are open, `exchange` one request on its way; `outcome` is what became of it, which
`journal` keeps and `tally` counts. `forking` and `parting` say where a walk leaves its recording.
"""
