"""Values that the rooms of a scenario share: messages, criteria, names, options, faults."""
