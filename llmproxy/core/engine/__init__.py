"""What becomes of a request: identified, placed, decided; then answered, released, or refused.

`engine` puts the parts together, which share one `state`. In the order of a request: `fast_path` answers what was asked
before in the same words, `request_stages` are its way otherwise: `request_identification` says which request it is, of
which session and provider, `decide` is the table of modes; `answer_storage` stores what came back, `outcome_recorder`
sums it up. What more is asked is a `feature`, a row in `interceptor_order`: `partly_live_sessions`,
`bound_hits` (another folder, day, id), `fault_injection`, `forking` (overrides, too), `mcp_playback`,
`completion_order`, `abandoned_answers`.
"""
