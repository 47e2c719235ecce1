"""A comparison as text: for people, for programs, for a CI."""
