"""Tests of users' own scripts."""
