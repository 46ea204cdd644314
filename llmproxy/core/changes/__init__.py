"""Recordings that outlive an edit: which recorded answer stands here, and what of its request has changed since.

    recorded, present request -> `request_diff.diff_requests`: the `Change`s, or the `Refusal` with its reason
    a request that missed     -> `recordings_by_position.CallPositions`: the recording at its place, or why none
    a change that is accepted -> `accepted_changes.AcceptedChange`: in the store by cassette, in its file as `changes:`
    a call of a trial         -> `change.UnrecordedTrialCall`: what it came to, what it would cost to record anew

The question is never carried. Everything else is carried only under changes that somebody accepted (or in a session on
trial, which accepts all that may be offered), and is said each time: `Call.carried` holds the names of the changes, the
answer has the header ``x-llmproxy-carried``, `proxy_calls.Totals` counts it. It is a hit, never exact and never bound.

How a session is told (`core.engine.carried_answers`):

    Sessions.open_session(..., trial=True)      misses are answered on trial; only in the modes that stay offline
    Sessions.open_session(..., carry=False)     no accepted change counts: what changed is a miss (asked anew in `once`)
    neither                                     what is accepted in its cassette counts
    Config.trial                                every session that says nothing else is on trial
    report["trial"]                     of a session on trial: `UnrecordedTrialCall.to_json()` of each inexact call

Accepted changes of a cassette are read and written with `core.store.queries.read_accepted_changes` and
`replace_accepted_changes`.
"""
