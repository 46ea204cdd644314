"""What one run does: its steps, and the stage that they act on."""
