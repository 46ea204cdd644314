"""Real SDKs in environments of their own, driven through the proxy."""
