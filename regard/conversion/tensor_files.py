"""Safetensors files of other programs, read and written one tensor at a time.

`regard.storage.tensors` seals what is ours; what comes from elsewhere carries no seal, so only its form can be checked.
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
    """A file of named tensors: `entries` says what there is, `read` fetches one.

    Raises:
        CheckpointError: missing, cut short, or claiming what cannot be.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with _opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > HEADER_LIMIT or 8 + length > size:
                raise CheckpointError(f"{path} has {size} bytes and is cut short, or is no file of tensors")
            content = parse_json(file.read(length), path)
        try:
            self.metadata: dict[str, str] = dict(content.pop("__metadata__", None) or {})
            self.entries = {name: _entry(name, item, path) for name, item in content.items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: the header is not that of a file of tensors ({error})") from error
        self._start = 8 + length
        end = 0
        for entry in sorted(self.entries.values(), key=lambda entry: entry.start):
            if entry.start != end:
                raise CheckpointError(f"{path}: its tensors leave a gap or overlap at byte {end}")
            end = entry.stop
        if self._start + end != size:
            raise CheckpointError(f"{path} has {size} bytes; its header describes {self._start + end}")

    def read(self, name: str) -> torch.Tensor:
        """One tensor, on the CPU."""
        entry = self.entries[name]
        if entry.start == entry.stop:
            return torch.empty(entry.shape, dtype=DTYPES[entry.code])
        data = bytearray(entry.stop - entry.start)
        with _opened(self.path) as file:
            file.seek(self._start + entry.start)
            if file.readinto(data) != len(data):
                raise CheckpointError(f"{self.path} ended in the middle of tensor {name!r}: was it changed meanwhile?")
        return torch.frombuffer(data, dtype=DTYPES[entry.code]).reshape(entry.shape)


def write_tensors(
    file: BinaryIO, shapes: Mapping[str, tuple[str, list[int]]], tensors: Iterable[torch.Tensor], metadata: dict
) -> None:
    """Write tensors as they come, so that no two need to be held.

    Args:
        file: where.
        shapes: the dtype's code and the shape of each by its name, in the order in which they come.
        tensors: their numbers.
        metadata: words to keep beside them.
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
    """A plain file, or a link to one: a hub's local folders are made of links."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CheckpointError(f"{path} is not a plain file")
    return os.fdopen(descriptor, "rb")
