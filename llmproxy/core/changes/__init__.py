"""Recordings that stay valid after an edit: the recorded answer at a call's place, and the changes of its request.

An answer is never carried to a changed question. Other changes need acceptance (a session on trial accepts all that may
be offered), and are reported each time: `Call.carried` contains the names of the changes, the answer has the header
``x-llmproxy-carried``, `calls_and_totals.Totals` counts it. It is a hit, but neither exact nor bound.
"""
