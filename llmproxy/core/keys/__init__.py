"""When two requests are the same: rules, the canonical request, and its digest.

    request -> redact -> normalize (user_rules, body_rules, head_rules) -> canonical request -> key

A change of what this room makes of a request needs a new tag of the key; the golden keys of its tests say so.
"""
