"""The history command: list the runs of a folder and which are comparable. It reads only records."""
