"""How the ranks of a launch reach each other."""
