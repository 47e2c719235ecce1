"""Networks and data to train on. Nothing here depends on a framework."""
