"""Estimates and tests: intervals, contests between rivals, differences between launches. Pure."""
