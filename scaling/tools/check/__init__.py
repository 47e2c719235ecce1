"""The preflight: is this cluster fit to be measured?  `mpirun -np N python -m scaling check`."""
