"""What `@scenario.cache` remembers: keys of calls, values as bytes, one file, one flight for callers at once."""
