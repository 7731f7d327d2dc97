"""The agent, a program in C that runs a device's driver on another machine, and the device port to it.

The host sends commands to its standard input and reads answers from its standard output, whatever link (`links/`)
carries them. `protocol.h` defines both, for the agent and for `frames`. `links/toolchains.py` builds it.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
"""Folder of the agent's C files."""
