"""What an agent did, observed on the wire: the one reading of tool calls, tokens, retries and histories.

    calls of a session (as the proxy tells them) -> `wire.Wire` -> `wire.Observed` of a stretch of it: tools, usage,
    retries, what is not known

Scenarios, suites and reports ask here, so that for one question there is one answer. A tool call is an entry in an
*answer* of a model (`tools`), never in the history that a request carries. It is executed if a later request of its
conversation brings its result (`results`). A request that was sent again counts once, if the wire shows that it was
(`retries`). What the wire does not show is never taken for nothing: `Observed.unread` says which answers are not known,
and why.

    wire        everything of a run, in order of arrival, and what of it belongs to a stretch of time
    seen        one exchange, and what of it counts
    tools       the calls of tools: asked for, executed, with which result
    servers     what servers of tools (MCP) really got and returned, and where that is not what models asked for
    pending     which call a result in a request is for
    retries     which answers were asked for again
    unread      answers that nobody can read, or only in part
    results     what requests say about the results of tools
    tokens      tokens and cost; `estimate` guesses where a provider is silent
    threads     two requests of one conversation, compared; `processing` tells from it what an agent did to its history,
                `declared`
                what the provider says that it did
"""
