"""Real traffic, sent again."""
