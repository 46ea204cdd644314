"""MCP, the agent's tools: recorded messages given to another client, in another run.

What counts of a message stands in `core.keys.mcp`. Here is what a recorded answer needs before it fits today's client:

    answers    the ids of the asker put in place of the recorded ones
    turns      where an answer must wait: for the client's answer to a question of the server's, for what an unasked message followed
    refusals   a miss as the protocol says errors, so that the client shows our text
    texts      what was asked and answered, in a line

Pure: no socket, no process, no store.
"""
