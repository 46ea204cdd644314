"""The database of recordings: one SQLite file, made to be read.

`store` writes, `reading` reads without ever changing the file, `connect` opens, `migrations` makes and upgrades the schema;
`leases` keeps two recorders of one cassette apart, `rederive` and `upkeep` keep a store in order.
"""
