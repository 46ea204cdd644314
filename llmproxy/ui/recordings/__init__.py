"""A recording as the page reads it: its calls in order, what each says for the first time, and the list of them."""
