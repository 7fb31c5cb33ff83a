"""Accelerators, the systems they come in, and prices."""
