"""The opponents of `tests.bench.strategies`: each way to train as its framework's own documentation writes it,
as short and as fast as that allows, on the same model, digits, batch and threads.

One process per rank, pinned to its core by `launch.py`; ranks and addresses come in each framework's own
environment variables, the work on the command line, and blocks of steps on stdin (`work.py`).
"""
