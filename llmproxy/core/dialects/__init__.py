"""What providers say: requests and answers of each dialect, whole or streamed, in one form.

`conversation` reads an interaction for people and spans, put together of `messages`; `streams` finds events and the end
of a stream, `usage` counts tokens and money, `answers` writes an answer in a dialect.
"""
