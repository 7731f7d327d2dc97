"""Find the fastest OpenCL kernel for each device and size, keep it, and look it up at run time."""

__version__ = "0.1.0"
