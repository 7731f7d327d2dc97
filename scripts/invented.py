"""What benchmarks of the tuner itself measure: a graphics card that is invented, and its times."""

import dataclasses
import hashlib
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from autotune.model.device import DeviceLimits
from autotune.model.trial import Job
from fakes import INVENTED_PROCESSOR, FakeBuilds

INVENTED_GPU = dataclasses.replace(
    INVENTED_PROCESSOR,
    slug="invented",
    family="gpu",
    limits=DeviceLimits(
        max_work_group_size=1024, max_work_item_sizes=(1024, 1024, 64), max_allocation_bytes=2**32,
        local_memory_bytes=49152, compute_units=132, has_images=True, max_image_width=16384, max_image_height=16384,
    ),
)  # fmt: skip


def invented_ns(job: Job) -> float:
    """A time that says something about the configuration, and differs from one to the next."""
    values = dict(job.configuration.values)
    outputs = int(values.get("micro_tile_m", 1)) * int(values.get("micro_tile_n", 1))
    digest = hashlib.sha256(job.configuration.key.encode()).digest()
    return 1e6 * (1 + abs(outputs - 32) / 32) * (1 + digest[0] / 255)


class Forgetful(list[Any]):
    """What stands in for devices remembers what it was asked, for tests; not here."""

    def append(self, _item: Any) -> None: ...


class ForgetfulBuilds(FakeBuilds):
    """Builds that are not remembered."""

    def submit(self, job: Any) -> Any:
        self.jobs, self.futures = Forgetful(), Forgetful()
        return super().submit(job)
