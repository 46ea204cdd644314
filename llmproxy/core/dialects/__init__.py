"""The dialects of providers: requests and answers, whole or streamed, in one form.

`conversation` reads an interaction for people and spans, with the parts in `messages`. `stream_events` finds events and
the end of a stream, `usage_and_cost` counts tokens and money, `answer_writing` writes an answer in a dialect.
"""
