"""The shapes of a trace: spans, runs, what is known of them, and what they come to as a fingerprint."""
