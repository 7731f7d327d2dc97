"""What a network does: by the name of a preset, or read from a file: GGUF, ONNX, or safetensors with a config.json.

Neither weights nor code are read. `read_network` returns a `Network`; `estimate.py` says how long it takes.
"""

from pathlib import Path

from autotune.errors import UsageError
from autotune.networks.operation import Network, Operation, Step
from autotune.networks.settings import Workload

__all__ = ["Network", "Operation", "Step", "Workload", "read_network"]


def read_network(path: Path, workload: Workload) -> Network:
    """Return the network of a file or folder. Raises UsageError, which names the file and what is wrong with it."""
    suffix = path.suffix.lower()
    if suffix == ".gguf":
        from autotune.networks.gguf import read_gguf

        return read_gguf(path, workload)
    if suffix == ".onnx":
        from autotune.networks.onnx_operations import read_onnx

        return read_onnx(path, workload)
    if suffix in (".safetensors", ".json") or path.is_dir():
        from autotune.networks.config import read_config

        return read_config(path, workload)
    hint = "GGUF, ONNX, safetensors, or a folder with a config.json can be read"
    raise UsageError(f"{path}: not a model file", hint=hint)
