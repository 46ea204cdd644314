"""The core: all processing between received and sent bytes, without network access."""
