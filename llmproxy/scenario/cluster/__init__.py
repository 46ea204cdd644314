"""Runs on the machines of a Ray cluster: one remote runner, for suites (`suite.run.run_on_cluster`) and for
scenarios in Python.

remote_runner.py     the cluster, and calls on it as tasks; the only importer of ray
transfer_files.py    what travels there, a named list of files and variables, and what comes home
worker_node.py       the worker: files unpacked, a proxy of its own
ray_pacer.py         rates of providers, counted by one actor for all nodes
scenarios_on_ray.py  `with scenario.on("ray"):` sends the runs of scenarios in Python there
"""
