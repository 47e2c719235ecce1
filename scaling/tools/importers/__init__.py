"""`scaling import`: logs of other tools -> a run of rows marked IMPORTED. Knows no process and no framework."""
