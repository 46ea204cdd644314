"""Traffic as values: requests, responses, chunks, frames, and their conversion to bytes.

The lowest layer: the rest of the core uses these types. `interaction` has the data types, `canonical_json` the only
canonical form of JSON, `body_decoding` undoes content-encodings, `json_diff` compares two values for display.
"""
