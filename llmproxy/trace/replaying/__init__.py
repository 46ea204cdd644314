"""The replay engine over a recording, without an agent and without a network."""
