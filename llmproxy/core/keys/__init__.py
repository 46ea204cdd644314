"""Equality of requests: rules, the canonical request, and its digest, the key.

    request -> redact -> normalize (user_rules, built_in_body_rules, head_rules) -> canonical request -> key

A change of the canonical form or the digest needs a new key tag; the golden keys in the tests detect it.
"""
