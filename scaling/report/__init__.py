"""Reports: what a run's file says, as a table for people or for programs. Reads the records alone."""
