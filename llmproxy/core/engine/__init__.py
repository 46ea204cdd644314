"""What becomes of a request: identified, placed, decided; then answered, released, or refused.

`engine` puts the parts together, which share one `state`. In the order of a request: `dispatch` finds session and
provider, `fast_path` answers what was asked before in the same words, `keying` says which request it is, `decide` is
the table of modes, and `identifying` goes through them in order. `answering` reads what is replayed, `answer_writer`
stores what came back (`interaction_builder` makes the recording of it), `outcome_recorder` sums it up. The rest are
cases in which more has to be asked: `binding` (another folder, day, id), `divergence` (runs that fork, overridden
answers), `live_exchanges` (some channels live, the others recorded), `fault_injection`, `mcp_playback`, `misses`.
"""
