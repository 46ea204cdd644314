"""What everything in a scenario stands on: plain values that users copy and dump, where calls go, and what we have not, by name."""
