"""Calibrating a device's clocks in a child process: a device that hangs or crashes at it harms nobody."""

import sys
from collections.abc import Callable, Sequence

from autotune.errors import WorkerError
from autotune.model.trial import Calibration
from autotune.process import child

LIMIT_S = 20.0
CALIBRATOR = (sys.executable, "-m", "autotune.measure.calibration")
"""Starts a child process that calibrates."""


def try_calibration(selector: str, limit_s: float = LIMIT_S, command: Sequence[str] = CALIBRATOR) -> Calibration | str:
    """The calibration of a device, or in a few words why there is none. `selector` is ``platform:device``."""
    with child.Child(command) as calibrator:
        try:
            answer = calibrator.ask(selector, {"calibration": limit_s})
        except WorkerError as error:
            return error.message
    return answer.message if isinstance(answer, child.Loss) else answer


def serve() -> None:
    """The child: calibrate until the input ends."""
    from autotune.device.clocks import calibrate
    from autotune.device.session import Session

    def calibrate_one(selector: str, entering: Callable[[str], None]) -> Calibration:
        entering("calibration")
        return calibrate(Session(selector))

    child.serve(calibrate_one)


if __name__ == "__main__":
    serve()
