"""Several runs of one scenario: their verdict, and the statistics behind it."""
