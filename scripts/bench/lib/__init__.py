"""What the benches share; each of them is a file beside this folder."""
