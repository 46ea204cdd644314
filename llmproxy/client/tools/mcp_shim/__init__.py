"""`llmproxy mcp -- server args...`: the shim that replaces an MCP server over stdio. Its imports are light: clients
wait.
"""
