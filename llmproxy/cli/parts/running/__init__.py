"""What a command that runs an agent at the proxy is made of: what was typed, what is opened for it, a sweep, what is said at the end."""
