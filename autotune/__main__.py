"""``python -m autotune`` is the command ``autotune``."""

import sys

STOPPED = 130


def run() -> int:
    """The command; the exit status. Ctrl-C while it still loads shows no traceback either."""
    try:
        from autotune.cli import main
    except KeyboardInterrupt:
        return STOPPED
    return main()


if __name__ == "__main__":
    sys.exit(run())
