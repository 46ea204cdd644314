"""What the agent did on the wire in a step: tool calls, tokens, threads of conversation, histories."""
