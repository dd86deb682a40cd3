"""Safetensors files of other programs, read and written one tensor at a time.

They have no checksums, unlike the files of `regard.storage.tensors`, so only their structure can be checked.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any

import torch

from regard.errors import CheckpointError
from regard.storage.sealed_json import parse_json
from regard.storage.tensors import DTYPES, HEADER_LIMIT, Entry, raw_bytes


class TensorFile:
    """A file of named tensors: `entries` lists them, `read` loads one.

    Raises:
        CheckpointError: the file is missing, truncated or inconsistent.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with _opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > HEADER_LIMIT or 8 + length > size:
                raise CheckpointError(
                    f"{path} has {size} bytes and is truncated, or is not a tensor file; copy it again"
                )
            content = parse_json(file.read(length), f"the header of {path}")
        try:
            self.metadata: dict[str, str] = dict(content.pop("__metadata__", None) or {})
            self.entries = {name: _entry(name, item, path) for name, item in content.items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: the header is not that of a tensor file ({error})") from error
        self._start = 8 + length
        end = 0
        for entry in sorted(self.entries.values(), key=lambda entry: entry.start):
            if entry.start != end:
                raise CheckpointError(f"{path}: its tensors leave a gap or overlap at byte {end}")
            end = entry.stop
        if self._start + end != size:
            raise CheckpointError(f"{path} has {size} bytes; its header describes {self._start + end}; copy it again")

    def read(self, name: str) -> torch.Tensor:
        """Read one tensor to the CPU."""
        entry = self.entries[name]
        if entry.start == entry.stop:
            return torch.empty(entry.shape, dtype=DTYPES[entry.code])
        data = bytearray(entry.stop - entry.start)
        with _opened(self.path) as file:
            file.seek(self._start + entry.start)
            if file.readinto(data) != len(data):
                raise CheckpointError(
                    f"{self.path} ended in the middle of tensor {name!r}; it may have been changed while it was read"
                )
        return torch.frombuffer(data, dtype=DTYPES[entry.code]).reshape(entry.shape)


class TensorWriter:
    """Writes a file of named tensors one at a time, in any order, so that only one is in memory.

    Args:
        path: a new file; it has its full size at once, so that `TensorFile` can open it while it is written.
        shapes: dtype code and shape of each tensor by name.
        metadata: strings to store beside them.
    """

    def __init__(self, path: Path, shapes: Mapping[str, tuple[str, list[int]]], metadata: dict[str, str]) -> None:
        header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
        start = 0
        for name, (code, shape) in shapes.items():
            stop = start + math.prod(shape) * DTYPES[code].itemsize
            header[name] = {"dtype": code, "shape": shape, "data_offsets": [start, stop]}
            start = stop
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)  # the tensors start at a multiple of 8 bytes
        self._shapes, self._places = dict(shapes), {name: header[name]["data_offsets"][0] for name in shapes}
        self._start, self._missing = 8 + len(text), set(shapes)
        self._file = open(path, "xb")  # noqa: SIM115 (closed by `close`)
        self._file.write(len(text).to_bytes(8, "little") + text)
        self._file.truncate(self._start + start)

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Write one of the tensors that were named."""
        code, shape = self._shapes[name]
        assert list(tensor.shape) == shape, name
        assert tensor.dtype == DTYPES[code], name
        self._file.seek(self._start + self._places[name])
        self._file.write(raw_bytes(tensor))
        self._file.flush()
        self._missing.remove(name)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def check_complete(self) -> None:
        """Every tensor that was named must have been written."""
        assert not self._missing, sorted(self._missing)[:3]


def _entry(name: str, item: dict[str, Any], path: Path) -> Entry:
    start, stop = item["data_offsets"]
    entry = Entry(item["dtype"], item["shape"], start, stop)
    if any(type(number) is not int or not 0 <= number < 2**62 for number in (*entry.shape, start, stop)):
        raise CheckpointError(f"{path}: tensor {name!r} has an impossible shape or place")
    if entry.code not in DTYPES:
        raise CheckpointError(
            f"{path}: tensor {name!r} has dtype {str(entry.code)[:40]!r}; those read here are {', '.join(DTYPES)}"
        )
    if stop - start != math.prod(entry.shape) * DTYPES[entry.code].itemsize:
        raise CheckpointError(f"{path}: tensor {name!r} does not fill its shape {entry.shape}")
    return entry


def _opened(path: Path) -> BufferedReader:
    """Open a regular file, or a link to one, since the Hugging Face cache consists of links."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CheckpointError(f"{path} is not a regular file")
    return os.fdopen(descriptor, "rb")
