"""``python -m autotune`` is the command ``autotune``."""

import sys

STOPPED = 130


def run() -> int:
    """Run the command and return its exit status. Ctrl-C while it loads does not show a traceback either."""
    try:
        from autotune.cli import main
    except KeyboardInterrupt:
        return STOPPED
    return main()


if __name__ == "__main__":
    sys.exit(run())
