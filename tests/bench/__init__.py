"""Speed: each module prints a ratio measured side by side in one run. No test asserts a timing.

python -m tests.bench.overhead      an exchange point against a bare DDP script under torchrun
python -m tests.bench.strategies    every strategy against its framework's plainest script (plain/)
python -m tests.bench.gloo_horovod  gradient exchange alone, torch:gloo against torch:horovod
python -m tests.bench.agents        CPU of 16 agents while their workers measure
python -m tests.bench.turnaround    what a point costs beyond start-up and windows
python -m tests.bench.collector     events folded, records read and tabulated
"""
