"""Programs in other languages, with nothing but what their standard library brings."""
