"""What becomes of a request: identified, placed, decided; then answered, released, or refused.

`decide` is the table of modes, `placing` finds session and provider, `hits` is the short way of what was asked before in the
same words, `engine` holds it together and writes what comes back.
"""
