"""The predict command: efficiency of unmeasured world sizes, with 80 % intervals."""
