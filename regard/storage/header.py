"""The header of a safetensors file, with a seal: what it says is written, read and doubted here.

The header opens with the SHA-256 of all the rest of it, and holds the SHA-256 of each tensor; the places of the
tensors must fill the file exactly. So each byte of the file is covered by one of the two.
"""

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch

from regard.errors import CheckpointError
from regard.storage.sealed_json import parse_json

HEADER_LIMIT = 16 * 2**20  # bytes; a thousand tensors need about 0.2 MiB
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_OPENING = b'{"__metadata__":{"regard_seal":"'  # the seal's place is fixed, so no search can be misled
SEAL_LENGTH = 64
_MANIFEST = "regard_manifest"


class Entry(NamedTuple):
    """Where one tensor lies: its place counts from the end of the header."""

    code: str
    shape: list[int]
    start: int
    stop: int


class Header(NamedTuple):
    """What a file says it holds, before a byte of the tensors was read."""

    seal: str
    data_start: int
    entries: dict[str, Entry]
    hashes: dict[str, str]
    tied: dict[str, str]
    metadata: dict[str, str]


def render_header(
    entries: dict[str, Entry], hashes: dict[str, str], tied: dict[str, str], metadata: dict[str, str]
) -> tuple[bytes, str]:
    """The bytes before the tensors, their length included, and the seal that they open with."""
    manifest = json.dumps({"sha256": hashes, "tied": tied}, separators=(",", ":"))
    content: dict[str, Any] = {"__metadata__": {"regard_seal": "", _MANIFEST: manifest, **metadata}}
    for name, entry in entries.items():
        content[name] = {"dtype": entry.code, "shape": entry.shape, "data_offsets": [entry.start, entry.stop]}
    text = json.dumps(content, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + SEAL_LENGTH) % 8)  # the tensors start at a multiple of 8 bytes
    length = (len(text) + SEAL_LENGTH).to_bytes(8, "little")
    seal = hashlib.sha256(length + text).hexdigest()
    return length + text[: len(_OPENING)] + seal.encode() + text[len(_OPENING) :], seal


def read_header(file: BinaryIO, path: Path) -> Header:
    """What a file claims, after its seal and every claim were checked; the tensors' bytes are not read yet.

    Raises:
        CheckpointError: cut short, damaged, or claiming what cannot be.
    """
    size = os.fstat(file.fileno()).st_size
    length_bytes = file.read(8)
    length = int.from_bytes(length_bytes, "little")
    if len(length_bytes) < 8 or length > HEADER_LIMIT or 8 + length > size:
        raise CheckpointError(
            f"{path} has {size} bytes and says its header has {length}; it is cut short or no file of tensors"
        )
    raw = file.read(length)
    after = len(_OPENING) + SEAL_LENGTH
    if len(raw) != length or raw[: len(_OPENING)] != _OPENING:
        raise CheckpointError(f"{path} carries no seal of regard, so damage could not be noticed; it is not read")
    seal = hashlib.sha256(length_bytes + _OPENING + raw[after:]).hexdigest()
    if raw[len(_OPENING) : after] != seal.encode():
        raise CheckpointError(f"{path}: the header does not match its seal, so the file is damaged")
    try:
        return _check_claims(parse_json(raw, path), seal, 8 + length, size, path)
    except CheckpointError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path}: the header is not that of a file of tensors ({error})") from error


def _check_claims(content: dict[str, Any], seal: str, data_start: int, size: int, path: Path) -> Header:
    """A seal proves no damage, not good will: everything the header says is still checked."""
    metadata = content.pop("__metadata__")
    manifest = parse_json(metadata.pop(_MANIFEST).encode(), path)
    metadata.pop("regard_seal")
    if not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError(f"{path}: the metadata holds something else than words")
    hashes, tied = manifest["sha256"], manifest["tied"]
    entries, end = {}, 0
    for name, item in content.items():
        start, stop = item["data_offsets"]
        entry = Entry(item["dtype"], item["shape"], start, stop)
        numbers = [*entry.shape, start, stop]
        if any(type(number) is not int or not 0 <= number < 2**62 for number in numbers) or len(entry.shape) > 64:
            raise CheckpointError(f"{path}: tensor {name!r} has an impossible shape or place")
        if entry.code not in DTYPES:
            raise CheckpointError(f"{path}: tensor {name!r} has the unknown dtype {str(entry.code)[:40]!r}")
        if start != end or stop - start != math.prod(entry.shape) * DTYPES[entry.code].itemsize:
            raise CheckpointError(f"{path}: tensor {name!r} leaves a gap, overlaps or does not fill its shape")
        entries[name], end = entry, stop
    if data_start + end != size:
        raise CheckpointError(f"{path} has {size} bytes; its header describes {data_start + end}")
    if hashes.keys() != entries.keys() or tied.keys() & entries.keys() or not set(tied.values()) <= entries.keys():
        raise CheckpointError(f"{path}: the manifest and the header name different tensors")
    return Header(seal, data_start, entries, hashes, tied, metadata)
