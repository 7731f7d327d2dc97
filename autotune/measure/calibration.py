"""Calibrates a device's clocks in a child process, so that a driver that hangs or crashes does no harm."""

import sys
from collections.abc import Callable, Sequence

from autotune.errors import WorkerError
from autotune.model.trial import Calibration
from autotune.process import child

LIMIT_S = 20.0
CALIBRATOR = (sys.executable, "-m", "autotune.measure.calibration")
"""Command of a child process that calibrates."""


def try_calibration(selector: str, limit_s: float = LIMIT_S, command: Sequence[str] = CALIBRATOR) -> Calibration | str:
    """Return the calibration of a device (``platform:device``), or a short text why there is none."""
    with child.Child(command) as calibrator:
        try:
            answer = calibrator.ask(selector, {"calibration": limit_s})
        except WorkerError as error:
            return error.message
    return answer.message if isinstance(answer, child.Loss) else answer


def serve() -> None:
    """Run as the child process: calibrate until the input ends."""
    from autotune.device.clocks import calibrate
    from autotune.device.session import Session

    def calibrate_one(selector: str, entering: Callable[[str], None]) -> Calibration:
        entering("calibration")
        return calibrate(Session(selector))

    child.serve(calibrate_one)


if __name__ == "__main__":
    serve()
