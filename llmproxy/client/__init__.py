"""The proxy seen from outside: starting its process, its control API, the environment of its clients.

Code that tests an agent (`llmproxy run`, the pytest plugin, scenarios) runs with the user's own pinned dependencies, so
this package imports the standard library and our lowest layers only; mitmproxy may be in another environment.
"""
