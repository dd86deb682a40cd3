"""Tensors in one safetensors file in which every changed bit is detected.

Any tool that reads safetensors can read the file. It is written here rather than by the `safetensors` package for three
reasons: that format has no checksums, so one flipped bit loads silently; the same content must give the same bytes; and
loading a model needs torch alone.

The header opens with the SHA-256 of the rest of it (the seal) and holds the SHA-256 of each tensor. The tensors must
fill the file exactly, so every byte is covered by one of the two.
"""

import errno
import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch

from regard.arguments import a_path, kind_of, of_kind
from regard.errors import ArgumentError, CheckpointError
from regard.storage.files import open_plain, replace_file
from regard.storage.sealed_json import parse_json

HEADER_LIMIT = 16 * 2**20  # bytes; a thousand tensors need about 0.2 MiB
MOST_AXES = 64  # of a tensor, as in PyTorch
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
CODES = {dtype: code for code, dtype in DTYPES.items()}
_OPENING = b'{"__metadata__":{"regard_seal":"'  # the seal has a fixed place
SEAL_LENGTH = 64
_MANIFEST = "regard_manifest"


class Entry(NamedTuple):
    """The dtype, shape and byte range of one tensor, counted from the end of the header."""

    code: str
    shape: list[int]
    start: int
    stop: int


class Header(NamedTuple):
    """The checked header of a file."""

    seal: str
    data_start: int
    entries: dict[str, Entry]
    hashes: dict[str, str]
    tied: dict[str, str]
    metadata: dict[str, str]


def render_header(
    entries: dict[str, Entry],
    hashes: dict[str, str],
    tied: dict[str, str],
    metadata: dict[str, str],
) -> tuple[bytes, str]:
    """The bytes of the header, with their length in front, and the seal."""
    manifest = json.dumps({"sha256": hashes, "tied": tied}, separators=(",", ":"))
    content: dict[str, Any] = {"__metadata__": {"regard_seal": "", _MANIFEST: manifest, **metadata}}
    for name, entry in entries.items():
        content[name] = {
            "dtype": entry.code,
            "shape": entry.shape,
            "data_offsets": [entry.start, entry.stop],
        }
    text = json.dumps(content, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + SEAL_LENGTH) % 8)  # the tensors start at a multiple of 8 bytes
    length = (len(text) + SEAL_LENGTH).to_bytes(8, "little")
    seal = hashlib.sha256(length + text).hexdigest()
    return length + text[: len(_OPENING)] + seal.encode() + text[len(_OPENING) :], seal


def read_header(file: BinaryIO, path: Path) -> Header:
    """Read and check the header of a file; the tensors are not read."""
    size = os.fstat(file.fileno()).st_size
    length_bytes = file.read(8)
    length = int.from_bytes(length_bytes, "little")
    if len(length_bytes) < 8 or length > HEADER_LIMIT or 8 + length > size:
        raise CheckpointError(
            f"{path} has {size} bytes and its header claims {length}; it is truncated or not a tensor file"
        )
    raw = file.read(length)
    if len(raw) != length or not raw.startswith(_OPENING):
        raise CheckpointError(
            f"{path} has no checksum of regard, so damage could not be detected; it is not read"
        )
    seal_end = len(_OPENING) + SEAL_LENGTH
    seal = hashlib.sha256(length_bytes + _OPENING + raw[seal_end:]).hexdigest()
    if raw[len(_OPENING) : seal_end] != seal.encode():
        raise CheckpointError(
            f"{path}: the header does not match its checksum, so the file is damaged"
        )
    try:
        return _check_claims(parse_json(raw, path), seal, 8 + length, size, path)
    except CheckpointError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{path}: the header is not that of a tensor file ({error})"
        ) from error


def _check_claims(
    content: dict[str, Any], seal: str, data_start: int, size: int, path: Path
) -> Header:
    """Check every claim of a header; a valid checksum does not make it trustworthy."""
    metadata = content.pop("__metadata__")
    manifest = parse_json(metadata.pop(_MANIFEST).encode(), path)
    metadata.pop("regard_seal")
    if not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError(f"{path}: the metadata holds values that are not strings")
    hashes = manifest["sha256"]
    tied = manifest["tied"]
    entries = checked_entries(content, data_start, size, path)
    same_names = hashes.keys() == entries.keys() and not tied.keys() & entries.keys()
    if not same_names or not set(tied.values()) <= entries.keys():
        raise CheckpointError(f"{path}: the manifest and the header name different tensors")
    return Header(seal, data_start, entries, hashes, tied, metadata)


def checked_entries(
    content: dict[str, Any], data_start: int, size: int, path: Path
) -> dict[str, Entry]:
    """The tensors of a header, in any order, which must fill a file of `size` bytes from `data_start` on."""
    entries = {}
    for name, item in content.items():
        start, stop = item["data_offsets"]
        entry = Entry(item["dtype"], item["shape"], start, stop)
        numbers = [*entry.shape, start, stop]
        possible = all(type(number) is int and 0 <= number < 2**62 for number in numbers)
        if not possible or len(entry.shape) > MOST_AXES:
            raise CheckpointError(f"{path}: tensor {name!r} has an impossible shape or place")
        if entry.code not in DTYPES:
            raise CheckpointError(
                f"{path}: tensor {name!r} has dtype {str(entry.code)[:40]!r}; those read here are {', '.join(DTYPES)}"
            )
        if stop - start != math.prod(entry.shape) * DTYPES[entry.code].itemsize:
            raise CheckpointError(f"{path}: tensor {name!r} does not fill its shape {entry.shape}")
        entries[name] = entry

    end = 0
    # Of tensors that start at the same byte, empty ones come first.
    for entry in sorted(entries.values(), key=lambda entry: (entry.start, entry.stop)):
        if entry.start != end:
            raise CheckpointError(f"{path}: its tensors leave a gap or overlap at byte {end}")
        end = entry.stop
    if data_start + end != size:
        raise CheckpointError(
            f"{path} has {size} bytes; its header describes {data_start + end}; copy it again"
        )
    return entries


def save_tensors(
    path: str | Path,
    tensors: dict[str, torch.Tensor],
    metadata: dict[str, str] | None = None,
    *,
    durable: bool = True,
) -> str:
    """Write named tensors to one file atomically; tied tensors are written once.

    Args:
        path: the file; an old one is replaced.
        tensors: tensors of any shapes and devices, by name.
        metadata: strings to store beside them.
        durable: wait until the file is on the disk; False inside `write_folder`, which waits once at the end.

    Returns:
        The seal: 64 hexadecimal digits that identify the content.

    Raises:
        ArgumentError: a name, dtype or layout that the format does not support.
        CheckpointError: the file could not be written; an old one is unchanged.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     seal = save_tensors(Path(folder) / "two.safetensors", {"one": torch.ones(2), "two": torch.zeros(3)})
    ...     load_tensors(Path(folder) / "two.safetensors")["one"]
    tensor([1., 1.])
    """
    of_kind("tensors", tensors, dict, "tensors by name")
    metadata = {} if metadata is None else metadata
    metadata = dict(of_kind("metadata", metadata, dict, "strings by name"))
    of_kind("durable", durable, bool, "True or False")
    _check_content(tensors, metadata)

    stored, tied = _split_tied(tensors)
    entries, total = _lay_out(stored)
    # Hashes have a fixed length, so the size of the header is known before they are: one pass over the tensors.
    unknown_hashes = dict.fromkeys(entries, "0" * SEAL_LENGTH)
    seal = ""

    def write(file: BinaryIO) -> None:
        nonlocal seal
        header, _ = render_header(entries, unknown_hashes, tied, metadata)
        if len(header) > HEADER_LIMIT:
            raise ArgumentError(
                f"the names and metadata of {len(tensors)} tensors need {len(header)} bytes, and a header has at most "
                f"{HEADER_LIMIT}; shorten or split them"
            )
        file.write(bytes(len(header)))
        hashes = {}
        for name, entry in entries.items():
            data = raw_bytes(stored[name])
            hashes[name] = _hash_tensor(entry, data)
            file.write(data)
        header, seal = render_header(entries, hashes, tied, metadata)
        file.seek(0)
        file.write(header)

    try:
        replace_file(a_path("path", path), write, durable=durable)
    except CheckpointError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            raise CheckpointError(f"{error}; these tensors need {total} bytes") from cause
        raise
    return seal


def load_tensors(path: str | Path, seal: str | None = None) -> dict[str, torch.Tensor]:
    """Read the tensors of a file that `save_tensors` wrote, on the CPU; tied names share one tensor.

    Args:
        path: the file.
        seal: what `save_tensors` returned, to accept this content only.

    Returns:
        The tensors by name.

    Raises:
        CheckpointError: the content is not what was written; the message names the file and the tensor.

    >>> load_tensors("nowhere.safetensors")
    Traceback (most recent call last):
    regard.errors.CheckpointError: nowhere.safetensors cannot be read: No such file or directory
    """
    path = a_path("path", path)
    with open_plain(path) as file:
        header = read_header(file, path)
        if seal is not None and seal != header.seal:
            raise CheckpointError(f"{path} holds other tensors than expected: the seals differ")
        tensors = {}
        by_place = sorted(header.entries, key=lambda name: header.entries[name].start)
        for name in by_place:
            entry = header.entries[name]
            file.seek(header.data_start + entry.start)
            data = bytearray(entry.stop - entry.start)
            if file.readinto(data) != len(data) or _hash_tensor(entry, data) != header.hashes[name]:
                raise CheckpointError(
                    f"{path}: tensor {name!r} does not match its SHA-256, so the file is damaged"
                )
            tensors[name] = _from_bytes(entry, data, name, path)
    in_order_of_header = {name: tensors[name] for name in header.entries}
    for name, first_name in header.tied.items():
        in_order_of_header[name] = tensors[first_name]
    return in_order_of_header


def load_tensor_metadata(path: str | Path) -> dict[str, str]:
    """The metadata of a file, without reading its tensors.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     seal = save_tensors(Path(folder) / "one.safetensors", {"one": torch.ones(2)}, {"step": "7"})
    ...     load_tensor_metadata(Path(folder) / "one.safetensors")
    {'step': '7'}
    """
    path = a_path("path", path)
    with open_plain(path) as file:
        return read_header(file, path).metadata


# Writing


def _check_content(tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str) or key.startswith("regard_"):
            raise ArgumentError(
                f"metadata holds {key!r}: {value!r}; keys and values are strings, and keys that start "
                f"with 'regard_' are reserved"
            )
    for name, tensor in tensors.items():
        if not isinstance(name, str) or name == "__metadata__":
            raise ArgumentError(
                f"a tensor is named {name!r}; give a string other than '__metadata__'"
            )
        if not isinstance(tensor, torch.Tensor):
            raise ArgumentError(f"{name!r} is {kind_of(tensor)}; only tensors are stored here")
        if tensor.layout != torch.strided or tensor.dtype not in CODES or tensor.is_meta:
            raise ArgumentError(
                f"tensor {name!r} has dtype {tensor.dtype}, layout {tensor.layout} and device "
                f"{tensor.device}; only dense tensors with values, of {sorted(CODES.values())}, are stored"
            )


def _split_tied(tensors: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Each tensor under its first name, and the first name of every other name."""
    first_names: dict[tuple, str] = {}
    stored = {}
    tied = {}
    for name, tensor in tensors.items():
        memory = (tensor.device, tensor.dtype, tensor.data_ptr(), tensor.shape, tensor.stride())
        # The view of another sign has the same memory and other numbers.
        numbers = (*memory, tensor.is_neg(), tensor.is_conj())
        first_name = first_names.setdefault(numbers, name) if tensor.numel() else name
        if first_name == name:
            stored[name] = tensor
        else:
            tied[name] = first_name
    return stored, tied


def _lay_out(tensors: dict[str, torch.Tensor]) -> tuple[dict[str, Entry], int]:
    """Place tensors of wide dtypes first, so that each starts at a multiple of its item size; then by name."""
    entries = {}
    start = 0
    for name in sorted(tensors, key=lambda name: (-tensors[name].element_size(), name)):
        tensor = tensors[name]
        stop = start + tensor.numel() * tensor.element_size()
        entries[name] = Entry(CODES[tensor.dtype], list(tensor.shape), start, stop)
        start = stop
    return entries, start


def _hash_tensor(entry: Entry, data: bytearray) -> str:
    digest = hashlib.sha256(f"{entry.code}{entry.shape}".encode())
    digest.update(data)
    return digest.hexdigest()


def raw_bytes(tensor: torch.Tensor) -> bytearray:
    """The bytes of a tensor, without NumPy."""
    numbers = tensor.detach().resolve_conj().resolve_neg().cpu()
    flat = numbers.reshape(-1).contiguous().view(torch.uint8)
    data = bytearray(flat.numel())
    if data:
        torch.frombuffer(data, dtype=torch.uint8).copy_(flat)
    return data


# Reading


def _from_bytes(entry: Entry, data: bytearray, name: str, path: Path) -> torch.Tensor:
    dtype = DTYPES[entry.code]
    try:
        if data:
            return torch.frombuffer(data, dtype=dtype).reshape(entry.shape)
        return torch.empty(entry.shape, dtype=dtype)
    except (RuntimeError, OverflowError) as error:
        raise CheckpointError(
            f"{path}: tensor {name!r} has a shape that torch cannot make ({error})"
        ) from error
