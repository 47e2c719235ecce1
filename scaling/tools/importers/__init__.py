"""The import command: logs of other tools become a run with rows marked IMPORTED."""
