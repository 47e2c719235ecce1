"""Views of a running sweep."""
