"""Two runs side by side: which call stands for which, what differs, and how that is shown."""
