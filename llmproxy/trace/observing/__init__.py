"""An agent's behaviour observed on the wire: tool calls, tokens, retries and histories.

A tool call is an entry in an *answer* of a model, never in the history that a request carries; it is executed if a
later request of its conversation brings its result. Missing information is never taken for nothing.
"""
