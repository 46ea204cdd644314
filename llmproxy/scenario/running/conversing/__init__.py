"""A conversation that goes on: whose turn it is, what the next one is told, the call, and who hears of it."""
