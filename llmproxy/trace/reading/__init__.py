"""From interactions to spans: decoding exchanges, separating conversations, joining tool calls with their results."""
