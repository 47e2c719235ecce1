"""`scaling compare`: whether a change made training slower, by two sets of runs. Reads the records alone."""
