"""Runs on the machines of a Ray cluster.

    on.py         `with scenario.on("ray"):` sends the runs of scenarios in Python there
    reaching.py   the cluster: an address, a connection, why it was refused; the only importer of ray
    tasks.py      a call as a task: what it needs, cancelled, made again where a worker or a node died
    parcel.py     what travels: a named list of files and variables
    place.py      the worker: files unpacked, a proxy of its own
    pacing.py     rates of providers, counted by one actor for all nodes
    numbers.py    numbers of a node's recordings as those of this machine's store

Suites use the same, but for `on.py`: `suite.run.cluster`.
"""
