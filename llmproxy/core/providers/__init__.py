"""Providers: their table, and the routing of a request to one of its rows.

`provider_table` is the data; `routing` finds a row by path, header and host (`route`, `route_by_host`). It also
holds upstreams, AWS signatures and call rates (`upstreams_and_rates`), and answers to auxiliary calls (`stubs`).
"""
