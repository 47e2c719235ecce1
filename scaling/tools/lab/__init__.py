"""A cluster on one Linux machine: nodes as namespaces, cards as shaped links. See README.md here."""
