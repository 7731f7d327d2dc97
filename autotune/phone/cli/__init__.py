"""The commands about devices of other machines."""
