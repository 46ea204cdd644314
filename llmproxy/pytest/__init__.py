"""The pytest plugin: the fixture `llmproxy`, its options, suites collected as tests, scenarios in the report.

`plugin` is what pytest loads. It runs in the environment of the tests, so it needs no mitmproxy: the proxy is a
process.
"""
