"""`python -m scaling predict learn published.json`: learns the file of priors from published series."""
