"""`scaling history`: all runs of a folder, a line each, and which are comparable. Reads the records alone."""
