"""The stages of a request: it is identified, routed and decided, then answered, forwarded or refused.

`engine` builds the parts, which share one `state`. In the order of a request: `fast_path` answers an identical request
that was answered before, and `request_stages` handles every other one. `request_identification` finds its session,
provider and key, `decide` is the table of modes, `answer_storage` stores the provider's answer, and `call_accounting`
summarizes the call. Everything else is a `feature`, a row in `interceptor_order`: `partly_live_sessions`, `bound_hits`
(another folder, day, id), `fault_injection`, `forking` (also overrides), `mcp_playback`, `completion_order`,
`abandoned_answer_replay`.
"""
