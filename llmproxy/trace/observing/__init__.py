"""What an agent did, observed on the wire: the one reading of tool calls, tokens, retries and histories.

    calls of a session (as the proxy tells them) -> `WireObserver` -> `AgentStep` of a stretch of it: tools, usage,
    retries, what is not known

Scenarios, suites and reports ask here, so that for one question there is one answer. A tool call is an entry in an
*answer* of a model (`tool_calls`), never in the history that a request carries; it is executed if a later request of
its conversation brings its result. What the wire does not show is never taken for nothing: `AgentStep.unreadable` says
which answers are not known, and why.

    agent_activity  all of a run, in order of arrival: retries, results of calls, what belongs to a stretch of time
    tool_calls      one exchange and its calls of tools; what servers (MCP) got, and where that differs
    links           which earlier request one goes on from; `thread_diff` compares the two; `history_edits` says what
                    an agent, or its provider, did to its history
"""
