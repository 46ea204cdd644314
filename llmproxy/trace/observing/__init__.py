"""What an agent did, observed on the wire: the one reading of tool calls, tokens, retries and histories.

    calls of a session (as the proxy tells them) -> `wire.Wire` -> `wire.Observed` of a stretch of it: tools, usage,
    retries, what is not known

Scenarios, suites and reports ask here, so that for one question there is one answer. A tool call is an entry in an
*answer* of a model (`tools`), never in the history that a request carries; it is executed if a later request of its
conversation brings its result. What the wire does not show is never taken for nothing: `Observed.unread` says which
answers are not known, and why.

    wire        everything of a run, in order of arrival: retries, results of calls, what belongs to a stretch of time
    tools       one exchange and its calls of tools; what servers (MCP) got, and where that differs
    linking     which earlier request one goes on from; `threads` compares the two; `processing` says what an agent, or
                its provider, did to its history
"""
