"""Traffic as values: requests, responses, chunks, frames, and the bytes they become again.

The lowest room: everything else in the core speaks of these. `interaction` has the shapes, `json_bytes` the one
canonical form of JSON, `encoding` what a content-encoding hides, `differences` how two values are compared for people.
"""
