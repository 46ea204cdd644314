"""The proxy as others see it: started as a process, asked over HTTP, named in a child's environment.

Whoever tests an agent (`llmproxy run`, the pytest plugin, scenarios) runs beside the user's own pins, so this package
imports the standard library and our light floors only; mitmproxy may live in another environment altogether.
"""
