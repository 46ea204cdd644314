"""Cases and other data of users: read from files as YAML 1.2, JSON and CSV mean them."""
