"""Clients that cannot change their base URL: which hosts are decrypted, and with which certificate."""
