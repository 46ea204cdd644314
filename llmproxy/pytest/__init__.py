"""The pytest plugin: the fixture `llmproxy`, its options, suites collected as tests, scenarios in the report.

pytest loads `plugin`. It runs in the environment of the tests and does not need mitmproxy: the proxy is a process.
"""
