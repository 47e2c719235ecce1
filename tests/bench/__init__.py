"""Speed: each module prints a ratio measured side by side in one run. No test asserts a timing.

python -m tests.bench.overhead      workers of torch:gloo against a bare DDP script, taking turns by blocks
python -m tests.bench.strategies    the same for every strategy, against its framework's plainest script (plain/)
python -m tests.bench.forks         workers that are forked against fresh ones: until they train, and their rates
python -m tests.bench.pace          how many windows a start, how long: this machine's own noise replayed
python -m tests.bench.turnaround    what a point costs beyond start-up and windows
python -m tests.bench.transport     ranks over ZeroMQ against MPI: efficiency, the agents' CPU, 64 ranks' start
python -m tests.bench.startup       `--help` against importing what it stands on
python -m tests.bench.lab_links     what links of a lab deliver of the rate that they are shaped to
python -m tests.bench.lab_gloo      the same for all-reduces of Gloo, 4 and 16 ranks
python -m tests.bench.collector     events folded, records read and tabulated
python -m tests.bench.burn_in       memory and file of a week of --for, simulated
python -m tests.bench.comparisons   false and missed differences in tables of equals, simulated
python -m tests.bench.predict       errors of predictions on published series, one source left out at a time
python -m tests.bench.bisect        how often slow nodes are found, and by how many points, simulated
python -m tests.bench.certify       false and missed verdicts of scaling certify, and what it names, simulated
python -m tests.bench.gates         how often scaling compare is red on nothing and on a true loss, simulated
python -m tests.bench.mutations     sixty small faults planted one by one: how many do the tests notice?
python -m tests.bench.figures       size of the package: files, lines, floors, functions, pages
python -m tests.bench.importers     seconds and memory of 100 MB of each log, a thousand damages of each sample
python -m tests.bench.wheels        libraries and GPU code of wheels with CUDA on disk, and what they lack
"""
