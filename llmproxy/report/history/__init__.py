"""A test beside others: the one before it, the last ones, the cases of one scenario."""
