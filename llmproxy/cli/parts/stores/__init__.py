"""What commands do with a store: open it, find what was named, import, check."""
