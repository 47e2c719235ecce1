"""What is trained, and what it is fed with. Knows no framework."""
