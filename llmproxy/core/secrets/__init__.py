"""Detection of secrets, and their replacement by placeholders.

Matching uses the redacted request, so redaction never breaks replay.
"""
