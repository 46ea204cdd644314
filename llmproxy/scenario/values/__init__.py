"""Values shared by the packages of scenarios: messages, criteria, names, options, faults."""
