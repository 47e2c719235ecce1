"""PASS, FAIL or NO VERDICT on a cluster, with known error rates."""

NAME = "scaling certify"
