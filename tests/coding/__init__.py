"""Real coding agents from npm, recorded in one place and replayed in another."""
