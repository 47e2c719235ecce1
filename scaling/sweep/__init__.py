"""Rank 0's part: rounds, epochs of points, attempts, and the state of each."""
