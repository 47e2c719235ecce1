"""The other commands, one folder each; the core imports only `lab` of them."""
