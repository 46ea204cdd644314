"""A recording for the page: its calls in order, the new content of each, and the list of them."""
