"""The process that trains for one point. It knows one framework and no MPI."""
