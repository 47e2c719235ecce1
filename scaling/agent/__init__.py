"""The agent of each rank: it starts and watches the children of its host. It knows MPI and no framework."""
