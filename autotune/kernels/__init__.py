"""Kernel families: each module here declares one FAMILY and is found by its file name."""
