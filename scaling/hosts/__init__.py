"""The hardware, networks and limits of a host."""
