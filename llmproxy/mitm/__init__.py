"""The only package that imports mitmproxy: it carries out the engine's decisions and does the I/O."""

from llmproxy.mitm.slim_mitmproxy import slim_mitmproxy

slim_mitmproxy()  # before any module here imports mitmproxy
