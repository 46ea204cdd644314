"""The package as a stranger installs it: built, put into empty environments, and used from there. A part of `scripts/test all`."""
