"""What our own models are told: the prompts as files, and what is filled into them."""
