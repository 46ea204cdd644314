"""What a step says about rows: set up, found new, verified, waited for, and cleaned up again."""
