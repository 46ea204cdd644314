"""A store on PostgreSQL, for many proxies on many machines.

Cassettes that were read are kept on this machine as a store in a file, so that replay needs no round trip. Writes go to
the server first, in one transaction that assigns slots and ids under the lock of the cassette's row.
"""
