"""What becomes of a request: identified, placed, decided; then answered, released, or refused.

`engine` puts the parts together, which share one `state`. In the order of a request: `placing` finds session and provider,
`hits` is the short way of what was asked before in the same words, `deciding/` says what becomes of it, `answering` reads what is
replayed, `writing` stores what came back (`keeping` makes the recording of it), `telling` sums it up.
"""
