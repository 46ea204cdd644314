"""The database of recordings: one SQLite file, made to be read.

`store` writes, `reader` reads without ever changing the file, `connect` opens, `migrations` makes and upgrades the
schema; `rekeying` gives what was recorded under other rules the keys of today, `integrity_checks` looks at a whole
store.
"""
