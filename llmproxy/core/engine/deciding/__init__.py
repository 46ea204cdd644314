"""What becomes of one request: its key, the recording that answers it, or why none does.

`keying` says which request it is, `decide` is the table of modes, and `identifying` goes through them in order. The rest are the cases
in which more has to be asked: `binding` (another folder, day, id), `overriding` (runs that fork, answers that are swapped), `going_live`
(some channels live, the others recorded), `breaking` (faults on purpose), `talking` (MCP), `missing` (no recording).
"""
