"""Code shared by several commands: options derived from settings, safe printing, imports."""
