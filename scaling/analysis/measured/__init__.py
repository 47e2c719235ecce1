"""Records -> the facts of one cell: its step times, controls, causes of loss, traffic, devices. Pure."""
