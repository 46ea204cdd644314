"""What a suite may say, as pydantic models, from the file down to a value."""
