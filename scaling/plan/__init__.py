"""What was asked, and the hosts that are there, become points and tasks. Pure."""
