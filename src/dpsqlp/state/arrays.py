"""Arrays as bytes: .npy images one after another, in an order that the reader knows."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from dpsqlp.errors import StateError

_HEADER = threading.Lock()  # NumPy parses it by ast, which may fail in two threads of CPython 3.11


def pack(arrays: Sequence[NDArray[Any]]) -> list[bytes | memoryview]:
    """The parts of a file that holds these arrays; nothing is copied."""
    parts: list[bytes | memoryview] = []
    for array in arrays:
        contiguous = np.ascontiguousarray(array)
        header = io.BytesIO()
        npy.write_array_header_1_0(header, npy.header_data_from_array_1_0(contiguous))
        parts.append(header.getvalue())
        if contiguous.size:
            parts.append(contiguous.reshape(-1).view(np.uint8).data)
    return parts


def unpack(data: bytes) -> list[NDArray[Any]]:
    """The arrays of a file, read-only views of its bytes."""
    stream = io.BytesIO(data)
    arrays = []
    while stream.tell() < len(data):
        if npy.read_magic(stream) != (1, 0):
            raise StateError("A state file has arrays of a format this version does not write.")
        with _HEADER:
            shape, _, dtype = npy.read_array_header_1_0(stream)
        count = int(np.prod(shape))
        array = np.frombuffer(data, dtype, count, stream.tell()).reshape(shape)
        stream.seek(array.nbytes, io.SEEK_CUR)
        arrays.append(array)
    return arrays


def digest(parts: Sequence[bytes | memoryview]) -> str:
    """SHA-256 of the concatenation of parts."""
    state = hashlib.sha256()
    for part in parts:
        state.update(part)
    return state.hexdigest()
