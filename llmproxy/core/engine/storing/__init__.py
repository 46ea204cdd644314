"""What an engine keeps: its store, the answers that are being recorded, and how an exchange becomes a recording."""
