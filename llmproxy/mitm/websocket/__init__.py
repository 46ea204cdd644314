"""WebSockets: the upgrade, the recorder on mitmproxy's path, and the layer that replays."""
