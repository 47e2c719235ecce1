"""python -m scaling.run: measure a sweep."""

NAME = "scaling"  # how its errors begin
