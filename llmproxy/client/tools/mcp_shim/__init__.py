"""`llmproxy mcp -- server args...`: the shim in place of an MCP stdio server. Its imports are light: clients wait."""
