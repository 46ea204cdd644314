"""Values of bindings: circumstances and their forms, slots, what tools made, and the table of all that is bound in one pair of runs."""
