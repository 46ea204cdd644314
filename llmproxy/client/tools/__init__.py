"""`llmproxy mcp -- server args...`: the shim that stands where a server of tools over stdio stood. Light: its clients
wait for its start.
"""
