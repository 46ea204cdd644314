"""What agents do to their histories: a thread's requests compared, and condensing, pruning and compaction told from what was sent."""
