"""The learn command: learns the priors from published series."""
