"""Detection of secrets, and their replacement by placeholders, in requests before their keys are derived."""
