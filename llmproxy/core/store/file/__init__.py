"""A store in a file: opening, schema and migrations, leases and writing, advice on ignoring its journal in git."""
