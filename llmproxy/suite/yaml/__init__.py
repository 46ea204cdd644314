"""YAML 1.2 with places: every value knows the line and column that it came from."""
