"""Suites on the machines of a Ray cluster: the same engine, one step of it somewhere else.

What it shares with scenarios in Python is in `scenario.cluster`.

    baggage.py    what travels, beside what any run needs: suites, the files that their agents name
    node.py       one run in a worker: `run_once`
    driver.py     `World.execute` on Ray
    order.py      reports in the order of the suites, whatever ends first

`runner.run_cases` knows none of it: selection, hooks, lanes, verdicts and exit codes are those of one machine.
"""
