"""Parts of mitmproxy replaced by quicker ones, each for a measured reason (docs/speed.md)."""
