"""What commands tell at the terminal: recorded text made safe, progress, tables, whole conversations."""
