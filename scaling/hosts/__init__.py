"""What machines and networks are: processors, GPUs, interfaces, connections, and networks by name."""
