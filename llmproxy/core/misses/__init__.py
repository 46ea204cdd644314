"""The miss is the manual: the nearest recording, what differs, and what to type next."""
