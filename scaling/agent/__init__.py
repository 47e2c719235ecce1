"""What each rank runs: it starts and watches the children of its host. Knows MPI and no framework."""
