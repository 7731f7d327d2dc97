"""Messages between a process and its children over pipes: pickles, each with its length before it."""

import io
import pickle
import struct
from typing import IO, Any

from autotune.kernels import FILE_MODULE, families_of_files


def write_message(stream: IO[bytes], message: object) -> None:
    """Send a message. Raises OSError when the other side is gone."""
    data = pickle.dumps(message)
    stream.write(struct.pack("<Q", len(data)) + data)
    stream.flush()


def read_message(stream: IO[bytes]) -> Any:
    """Return the next message. Raises EOFError at the end of the stream."""
    header = stream.read(8)
    if len(header) < 8:
        raise EOFError
    (size,) = struct.unpack("<Q", header)
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return _Unpickler(io.BytesIO(data)).load()


class _Unpickler(pickle.Unpickler):  # only for messages of our own child or parent
    """Loads the files of the user's kernel families when a message contains an object of their classes."""

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith(FILE_MODULE):
            families_of_files()
        return super().find_class(module, name)
