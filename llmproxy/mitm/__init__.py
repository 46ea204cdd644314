"""The shell: the only package that imports mitmproxy. It obeys the engine and does the I/O."""
