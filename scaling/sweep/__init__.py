"""Rank 0 alone: rounds, attempts at a point, and what is known of them meanwhile."""
