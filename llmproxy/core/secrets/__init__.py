"""What is secret, and what stands in its place.

`secret_kinds` holds the tables: keys by their shape, by their place, by their name; `entropy` tells values drawn by lot
from words. `find_secrets` says where in a text secrets and this run's credentials stand, `encodings` puts placeholders
there in whatever encoding, `redact` does so for requests, answers and texts. Matching uses the redacted request, so
that redaction never breaks replay.
"""
