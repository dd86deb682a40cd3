"""Safetensors files of other programs, read and written one tensor at a time.

They have no checksums, unlike the files of `regard.storage.tensors`, so only their structure can be checked.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterable, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

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
                raise CheckpointError(f"{path} has {size} bytes and is truncated, or is not a tensor file")
            content = parse_json(file.read(length), path)
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
            raise CheckpointError(f"{path} has {size} bytes; its header describes {self._start + end}")

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


def write_tensors(
    file: BinaryIO, shapes: Mapping[str, tuple[str, list[int]]], tensors: Iterable[torch.Tensor], metadata: dict
) -> None:
    """Write tensors one at a time, so that only one is in memory.

    Args:
        file: an open binary file.
        shapes: dtype code and shape of each tensor by name, in the order of `tensors`.
        tensors: the tensors.
        metadata: strings to store beside them.
    """
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    start = 0
    for name, (code, shape) in shapes.items():
        stop = start + math.prod(shape) * DTYPES[code].itemsize
        header[name] = {"dtype": code, "shape": shape, "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the tensors start at a multiple of 8 bytes
    file.write(len(text).to_bytes(8, "little") + text)
    for (name, (code, shape)), tensor in zip(shapes.items(), tensors, strict=True):
        assert list(tensor.shape) == shape, name
        assert tensor.dtype == DTYPES[code], name
        file.write(raw_bytes(tensor))


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
