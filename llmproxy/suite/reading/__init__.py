"""Reading of suites: includes, parameters, references, errors with line and column."""
