"""Messages between the ranks of a launch, and the launch itself."""
