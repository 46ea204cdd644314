"""What is secret, and what stands in its place.

`patterns` says what a secret looks like, `find` where in a text it lies, `redact` puts placeholders there; `caller` makes a
fingerprint of who asked. Matching uses the redacted request, so that redaction never breaks replay.
"""
