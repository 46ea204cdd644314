"""What became of requests: each outcome, their sums, the calls of a walk in their order, and the journal that keeps them."""
