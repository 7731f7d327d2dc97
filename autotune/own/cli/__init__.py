"""The commands about kernels of the user's own."""
