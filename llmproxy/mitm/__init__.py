"""The only package that imports mitmproxy: it obeys the engine and does the I/O."""

from llmproxy.mitm.slim_mitmproxy import slim_mitmproxy

slim_mitmproxy()  # before any module here imports mitmproxy
