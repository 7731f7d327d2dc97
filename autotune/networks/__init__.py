"""What a network does, read from the header of its file: GGUF, ONNX, or safetensors with a config.json.

Neither weights nor code are read. `read_network` returns a `Network`; `estimate.py` says how long it takes.
"""

from pathlib import Path

from autotune.errors import UsageError
from autotune.networks.operation import Network, Operation, Step
from autotune.networks.settings import Wanted

__all__ = ["Network", "Operation", "Step", "Wanted", "read_network"]


def read_network(path: Path, wanted: Wanted) -> Network:
    """Return the network of a file or folder. Raises UsageError, which names the file and what is wrong with it."""
    suffix = path.suffix.lower()
    if suffix == ".gguf":
        from autotune.networks.gguf import read_gguf

        return read_gguf(path, wanted)
    if suffix == ".onnx":
        from autotune.networks.onnx_operations import read_onnx

        return read_onnx(path, wanted)
    if suffix in (".safetensors", ".json") or path.is_dir():
        from autotune.networks.config import read_config

        return read_config(path, wanted)
    hint = "GGUF, ONNX, safetensors, or a folder with a config.json"
    raise UsageError(f"{path}: is no model that can be read", hint=hint)
