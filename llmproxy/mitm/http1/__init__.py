"""HTTP/1 in front of mitmproxy: requests are framed here, hits answered at once, the rest forwarded one at a time."""
