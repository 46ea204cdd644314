"""What `llmproxy demo` shows: its agents, and who asks for them."""
