"""Searches of recorded spaces that begin with the ledgers of other devices, by the product's own path.

Spaces of the same parameters become a kernel file, each space a device, and what a search of it left behind the trials
and the winner of that device in a database. From there on everything is the product's: which devices teach, their
winners as the first trials, their trials as priors, what is proposed and told back. Only the default, which a search
measures first, is left out, since the recordings do not say what their authors began with.
"""

import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from recorded_space import RecordedSpace, load

from autotune.kernels import FILES, find_family
from autotune.model.device import Device
from autotune.model.trial import Measurement, Timer, Trial, TrialState
from autotune.search.knowledge import Knowledge
from autotune.search.neighbours import Neighbours
from autotune.search.proposals import Proposals
from autotune.store import Store

AMD_MODELS = ("MI", "W")
"""Beginnings of the models of AMD's cards in names of spaces; the others are NVIDIA's."""
KERNEL_FILE = """\
name = "{name}"
source = "{name}.cl"
global_size = "n"
sizes = {{ n = 1 }}
arguments = {{ out = {{ buffer = "int32", size = "n", access = "out" }} }}
[parameters]
{parameters}
"""
SOURCE = "kernel void {name}(global int *out) {{ out[get_global_id(0)] = {sum}; }}\n"


def write_kernel_files(paths: Sequence[Path], folder: Path) -> None:
    """Write a kernel file for each kernel, with the values of all its spaces, and make the product know them.

    Comes before the first use of any family, in the process that starts the others.
    """
    kernels: dict[str, list[RecordedSpace]] = {}
    for space in map(load, paths):
        kernels.setdefault(space.kernel, []).append(space)
    for name, spaces in kernels.items():
        named = [{p.name: p.values for p in space.parameters[name]} for space in spaces]
        values = {key: sorted({v for space in named for v in space[key]}) for key in named[0]}
        parameters = "\n".join(f"{key} = {found}" for key, found in values.items())
        (folder / f"{name}.toml").write_text(KERNEL_FILE.format(name=name, parameters=parameters), encoding="utf-8")
        (folder / f"{name}.cl").write_text(SOURCE.format(name=name, sum=" + ".join(values)), encoding="utf-8")
    os.environ[FILES] = os.pathsep.join(str(folder / f"{name}.toml") for name in kernels)


def warm_search(
    path: Path, ledgers: Mapping[Path, Sequence[int]], seed: int, budget: int
) -> tuple[tuple[str, ...], list[int]]:
    """Search a space where searches of others have measured the rows of `ledgers`.

    Returns the devices that it learnt from, and the rows in the order of their evaluation.
    """
    problem = find_family(load(path).kernel).examples()[0]
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "ledger.sqlite") as store:
        for other, rows in ledgers.items():
            there = Knowledge(_device(other), problem, store)
            store.add_device(there.device)
            for row in rows:
                trial = _trial(load(other), row)
                there.learn(trial)
                store.add_trial(there.device, problem, trial, there.provenance(trial.configuration))
            there.record_provisional()
        here, space = Knowledge(_device(path), problem, store), load(path)
        sources = Neighbours(here.device, here.family, problem, store).sources
        teachers = tuple(source.name.rpartition(" ")[2] for source in sources)
        proposals = Proposals(here, space, seed)
        proposals.leave_out(here.default)
        found: list[int] = []
        while len(found) < budget and (configuration := proposals.next()) is not None:
            row = space.row_of(configuration)
            assert row is not None
            trial = _trial(space, row)
            here.learn(trial)
            proposals.tell(trial)
            found.append(row)
    return teachers, found


def _device(path: Path) -> Device:
    """Return the device that a space was recorded on."""
    model = path.name.partition(".")[0].partition("_")[2]
    family, vendor = ("amd", "AMD") if model.startswith(AMD_MODELS) else ("nvidia", "NVIDIA")
    return Device(slug=model.lower().replace("_", "-"), family=family, vendor=vendor, model=model, driver="recorded")


def _trial(space: RecordedSpace, row: int) -> Trial:
    time_ns = 1e6 * float(space.times_ms[row])
    if math.isnan(time_ns):
        return Trial(configuration=space[row], state=TrialState.LAUNCH_FAILED)
    measurement = Measurement(time_ns=time_ns, samples_ns=(time_ns,), calls_per_sample=1, timer=Timer.EVENT)
    return Trial(configuration=space[row], state=TrialState.COMPLETE, measurement=measurement)
