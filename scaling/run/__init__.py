"""python -m scaling.run: measure a sweep."""
