"""Questions to whole recordings, of `llmproxy learn` and of comparisons: what varies between them, and what they come to in one run's words."""
