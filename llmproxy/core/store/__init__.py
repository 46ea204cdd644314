"""The database of recordings: one SQLite file, made to be read.

`store` writes, `reading` reads without ever changing the file, `connect` opens, `migrations` makes and upgrades the
schema; `rederive` gives what was recorded under other rules the keys of today, `checks` looks at a whole store.
"""
