"""Devices of other machines: links to them, the agent that runs there, and bundles for those without a link."""
