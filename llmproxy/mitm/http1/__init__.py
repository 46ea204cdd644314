"""HTTP/1 in front of mitmproxy: requests framed by us, hits answered at once, the rest handed over one at a time."""
