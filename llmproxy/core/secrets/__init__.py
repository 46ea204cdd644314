"""Detection of secrets, and their replacement by placeholders.

`secret_kinds` holds the tables: keys by shape, by context, by name; `entropy` distinguishes random values from words.
`find_secrets` finds the positions of secrets and of this run's credentials in a text, `encoded_secret_redaction`
replaces them in any encoding, and `redact` applies this to requests, answers and texts. Matching uses the redacted
request, so redaction never breaks replay.
"""
