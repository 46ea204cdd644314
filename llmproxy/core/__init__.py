"""The core: everything between bytes in and bytes out, without a network."""
