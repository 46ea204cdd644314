"""Recordings that stay valid after an edit: the recorded answer at a call's place, and the changes of its request.

    recorded, present request -> `request_diff.diff_requests`: the `Change`s, or the `Refusal` with its reason
    a request that missed     -> `recordings_by_position.CallPositions`: the recording at its place, or why none is
    a change that is accepted -> `accepted_changes.AcceptedChange`: in the store by cassette, in its file as `changes:`
    a call of a trial         -> `change.UnrecordedTrialCall`: its outcome, and the cost of recording it anew

An answer is never carried to a changed question. Other changes need acceptance (a session on trial accepts all that may
be offered), and are reported each time: `Call.carried` contains the names of the changes, the answer has the header
``x-llmproxy-carried``, `proxy_calls.Totals` counts it. It is a hit, but neither exact nor bound.

Settings of a session (`core.engine.carried_answers`):

    Sessions.open_session(..., trial=True)      misses are answered on trial; only in the modes that stay offline
    Sessions.open_session(..., carry=False)     accepted changes are ignored: a change is a miss (recorded in `once`)
    neither                                     the accepted changes of its cassette apply
    Config.trial                                every session without its own setting is on trial
    report["trial"]                     of a session on trial: `UnrecordedTrialCall.to_json()` of each inexact call

Accepted changes of a cassette are read and written with `core.store.queries.read_accepted_changes` and
`replace_accepted_changes`.
"""
