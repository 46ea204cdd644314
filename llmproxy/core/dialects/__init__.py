"""The dialects of providers: requests and answers, whole or streamed, in one form.

`conversation` reads an interaction for people and spans, with the parts in `messages`. `streams` finds events and the
end of a stream, `usage_and_cost` counts tokens and money, `answers` writes an answer in a dialect.
"""
