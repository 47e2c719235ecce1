"""The compare command: did a change make training slower? It reads only records."""
