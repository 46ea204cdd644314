"""What providers say: requests and answers of each dialect, whole or streamed, in one form.

`conversation` reads an interaction for people and spans, from `messages` (what was asked) and `answers` (what was
said); `streams` finds events and the end of a stream, `usage` counts tokens and money, `speak` writes an answer in a
dialect.
"""
