"""Runs on the machines of a Ray cluster: the same engine, one step of it somewhere else.

    baggage.py    what travels: a named list of files and variables, made by whoever starts the test
    node.py       one run in a worker: the files unpacked, a proxy of its own there, `run_once`
    driver.py     `World.execute` on Ray: tasks, resources, cancelling, what died run again once; the only importer of ray
    pacing.py     rates of providers, counted by one actor for all nodes
    numbers.py    numbers of a node's recordings as those of this machine's store
    order.py      reports in the order of the suites, whatever ends first

`runner.run_cases` knows none of it: selection, hooks, lanes, verdicts and exit codes are those of one machine.
"""
