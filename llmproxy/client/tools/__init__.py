"""MCP servers: those of a run agent (configuration, shim), and our own over recordings."""
