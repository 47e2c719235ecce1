"""The command `python -m scaling.run`: measure a sweep."""

NAME = "scaling"  # the prefix of its errors
