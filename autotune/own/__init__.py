"""Kernels of the user's own: kernel files, capture from running programs, exchange with other tuners."""
