"""The proxy as a run sees it: its session, what our own calls carry, and what was seen on the wire."""
