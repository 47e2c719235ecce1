"""The lab: a cluster on one Linux machine, with namespaces as nodes and shaped links as cards (README.md)."""
