"""How values look wherever they are shown: counts, money, shares, messages, and what must not be shown."""
