"""Estimates and tests: intervals, comparisons of several rivals, differences between launches."""
