"""Capture: kernel files from the OpenCL kernels that a program launches."""
