"""What is secret, and what stands in its place.

`kinds` lists keys that tell by themselves what they are, `patterns` what is secret by where it stands, `names` fields and members that carry
credentials; `looks` tells lots from words. `find` says where in a text secrets lie, `known` where the credentials of this run do, `disguises`
where they are hidden; `redact` puts placeholders there. `caller` makes a fingerprint of who asked. Matching uses the redacted request, so that
redaction never breaks replay.
"""
