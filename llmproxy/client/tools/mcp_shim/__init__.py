"""`llmproxy mcp -- server args...`: the shim in the place of a server of tools over stdio. Light: its clients wait."""
