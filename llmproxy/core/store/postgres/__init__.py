"""A store on PostgreSQL, for many proxies on many machines.

What was read of it lies on this machine as a store in a file, so that reading, and with it replay, is the same code and
costs no round trip: `local_copy` brings it up to date. Writing goes to the server first (`store`), in one transaction
that gives slots and ids under the lock of the cassette's row, and is acknowledged only when the server has committed.
`connection` connects, says what went wrong, and in PostgreSQL's text what that cannot hold; `schema` makes the tables
under a lock.
"""
