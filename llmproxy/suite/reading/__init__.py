"""From files to suites: includes, parameters, the flow of variables, complaints with line and column."""
