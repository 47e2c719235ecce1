"""Devices that are not there: they sleep as long as a published device computes, and exchange for real."""
