"""The check command, `mpirun -np N python -m scaling check`: tests whether a cluster is fit to be measured."""

NAME = "scaling check"  # prefix of its errors
