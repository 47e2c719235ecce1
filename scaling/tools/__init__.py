"""The other commands, one folder each, and `emulated`, the devices of the lab.

The core imports only `emulated` and `lab` of them.
"""
