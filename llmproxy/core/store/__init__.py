"""The database of recordings: one SQLite file, optimized for reading.

`store` writes, `reader` reads without ever changing the file, `connect` opens, `migrations` creates and upgrades the
schema; `rekeying` derives current keys for recordings of other rules, `integrity_checks` checks a whole store.
"""
