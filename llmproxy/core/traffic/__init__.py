"""Traffic as values: requests, responses, chunks, frames, and the bytes they become again.

The lowest room: everything else in the core speaks of these. `interaction` has the shapes, `canonical_json` the one
canonical form of JSON, `body_decoding` what a content-encoding hides, `json_diff` how two values are compared for
people.
"""
