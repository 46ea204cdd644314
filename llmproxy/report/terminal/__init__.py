"""What is said in a terminal: of requests as they come, of scenarios, of suites."""
