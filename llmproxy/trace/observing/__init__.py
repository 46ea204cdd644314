"""An agent's behaviour observed on the wire: tool calls, tokens, retries and histories.

    calls of a session (from the proxy) -> `WireObserver` -> `AgentActivity` of some of them: tools, usage, retries,
    unknowns

Scenarios, suites and reports all use it, so that their answers agree. A tool call is an entry in an *answer* of a model
(`tool_calls`), never in the history that a request carries; it is executed if a later request of its conversation
brings its result. Missing information is never taken for nothing: `AgentActivity.unreadable` lists unknown answers with
reasons.

    agent_activity  a whole run, in order of arrival: retries, results of calls, parts of the run
    tool_calls      one exchange and its tool calls; calls received by servers (MCP), and mismatches
    history_edits   edits of the history by an agent or its provider: `thread_diff` compares a request with the one
                    that it continues
"""
