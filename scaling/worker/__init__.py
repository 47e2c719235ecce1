"""The child that trains for one point. Knows one framework, no MPI."""
