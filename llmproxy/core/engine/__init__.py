"""The stages of a request: it is identified, routed and decided, then answered, forwarded or refused.

`engine` builds the parts, which share one `state`. `fast_path` answers a request that was answered before in few steps,
`request_stages` handles every other one. All else is a `feature`, a row of `FEATURES`.
"""
