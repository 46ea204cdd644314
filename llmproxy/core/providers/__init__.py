"""Who is meant by a request: the table of providers, and the ways to find a row of it.

`provider_table` is the data; `routing` asks it by path, header and host (`route`, `route_host`). What a provider needs
beyond that lies here too: its upstream, its error envelope, AWS's signature.
"""
