"""From interactions to spans: each exchange opened, conversations told apart, tool calls joined with their results."""
