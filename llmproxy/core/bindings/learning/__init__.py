"""Where slots come from: two requests that ask the same, ids that were captured, and what ships for known agents."""
