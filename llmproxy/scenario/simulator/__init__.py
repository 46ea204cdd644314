"""What the simulated user is made of: personas, and a person at the terminal in its place."""
