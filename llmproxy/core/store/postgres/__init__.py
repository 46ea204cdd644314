"""A store on PostgreSQL, for many proxies on many machines.

Cassettes that were read are kept on this machine as a store in a file, so that reading, and with it replay, is the same
code and needs no round trip: `local_copy` updates it. Writes go to the server first (`store`), in one transaction that
assigns slots and ids under the lock of the cassette's row, and are acknowledged only after the server's commit.
`connection` connects, translates errors, and encodes texts that PostgreSQL cannot store; `schema_and_leases` creates
the tables under a lock.
"""
