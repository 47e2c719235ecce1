"""The other commands: each a folder, and `emulated`, the devices of the lab. The core imports plan -> emulated and
run -> lab alone."""
