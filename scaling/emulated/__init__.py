"""Emulated devices: they sleep as long as a published device computes, and exchange real bytes."""
