"""Tensors in one safetensors file that notices every changed bit.

Every tool that reads safetensors reads it. It is written here rather than by the `safetensors` package for three
reasons: that format has no checksums (one flipped bit loads silently), the same content must give the same bytes,
and loading a model needs torch alone. What covers which byte is told in `header`.
"""

import errno
import hashlib
from pathlib import Path
from typing import BinaryIO

import torch

from regard.errors import ArgumentError, CheckpointError
from regard.kinds import a_path, of_kind
from regard.storage.files import open_plain, replace_file
from regard.storage.header import DTYPES, HEADER_LIMIT, SEAL_LENGTH, Entry, read_header, render_header

_CODES = {dtype: code for code, dtype in DTYPES.items()}


def save_tensors(
    path: str | Path,
    tensors: dict[str, torch.Tensor],
    metadata: dict[str, str] | None = None,
    *,
    durable: bool = True,
) -> str:
    """Write named tensors to one file, in one instant; tensors that are one (tied weights) are written once.

    Args:
        path: the file; an old one is replaced.
        tensors: any shapes and devices.
        metadata: words to keep beside them.
        durable: wait until the file is on the disk; False inside `write_folder`, which waits once for all.

    Returns:
        The seal: 64 hexadecimal digits that stand for the whole content.

    Raises:
        ArgumentError: a name, dtype or layout that the format does not have.
        CheckpointError: it could not be written; an old file is unchanged.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     seal = save_tensors(Path(folder) / "two.safetensors", {"one": torch.ones(2), "two": torch.zeros(3)})
    ...     load_tensors(Path(folder) / "two.safetensors")["one"]
    tensor([1., 1.])
    """
    of_kind("tensors", tensors, dict, "tensors by name")
    metadata = dict(of_kind("metadata", {} if metadata is None else metadata, dict, "strings by name"))
    of_kind("durable", durable, bool, "True or False")
    _check_content(tensors, metadata)
    stored, tied = _split_tied(tensors)
    entries, total = _lay_out(stored)
    seal = ""

    def write(file: BinaryIO) -> None:
        nonlocal seal
        # The hashes have a fixed length, so the header's size is known before them: one pass over the tensors.
        header, _ = render_header(entries, dict.fromkeys(entries, "0" * SEAL_LENGTH), tied, metadata)
        if len(header) > HEADER_LIMIT:
            raise ArgumentError(
                f"the names and words of {len(tensors)} tensors need {len(header)} bytes; a header has at most "
                f"{HEADER_LIMIT}: shorten or split them"
            )
        file.write(bytes(len(header)))
        hashes = {}
        for name, entry in entries.items():
            data = _to_bytes(stored[name])
            hashes[name] = _hash_tensor(entry, data)
            file.write(data)
        header, seal = render_header(entries, hashes, tied, metadata)
        file.seek(0)
        file.write(header)

    try:
        replace_file(a_path("path", path), write, durable=durable)
    except CheckpointError as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno in (errno.ENOSPC, errno.EDQUOT):
            raise CheckpointError(f"{error}; these tensors need {total} bytes") from error.__cause__
        raise
    return seal


def load_tensors(path: str | Path, seal: str | None = None) -> dict[str, torch.Tensor]:
    """Read every tensor of a file that `save_tensors` wrote, on the CPU; tied names share one tensor.

    Args:
        path: the file.
        seal: what `save_tensors` returned, if this very content is expected.

    Returns:
        The tensors by name.

    Raises:
        CheckpointError: one bit, one byte or one name is not what was written; names the file and the tensor.

    >>> load_tensors("nowhere.safetensors")
    Traceback (most recent call last):
    regard.errors.CheckpointError: nowhere.safetensors cannot be read: No such file or directory
    """
    path = a_path("path", path)
    with open_plain(path) as file:
        header = read_header(file, path)
        if seal is not None and seal != header.seal:
            raise CheckpointError(f"{path} holds other tensors than those it was saved with: the two seals differ")
        tensors = {}
        file.seek(header.data_start)
        for name, entry in header.entries.items():
            data = bytearray(entry.stop - entry.start)
            if file.readinto(data) != len(data) or _hash_tensor(entry, data) != header.hashes[name]:
                raise CheckpointError(f"{path}: tensor {name!r} does not match its SHA-256, so the file is damaged")
            tensors[name] = _from_bytes(entry, data, name, path)
    return tensors | {alias: tensors[name] for alias, name in header.tied.items()}


def load_tensor_metadata(path: str | Path) -> dict[str, str]:
    """The words kept beside the tensors of a file, without reading the tensors.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     seal = save_tensors(Path(folder) / "one.safetensors", {"one": torch.ones(2)}, {"step": "7"})
    ...     load_tensor_metadata(Path(folder) / "one.safetensors")
    {'step': '7'}
    """
    with open_plain(a_path("path", path)) as file:
        return read_header(file, a_path("path", path)).metadata


# Writing


def _check_content(tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str) or key.startswith("regard_"):
            raise ArgumentError(
                f"metadata holds {key!r}: {value!r}; keys and values are words, and keys that start "
                f"with 'regard_' are taken"
            )
    for name, tensor in tensors.items():
        if not isinstance(name, str) or name == "__metadata__":
            raise ArgumentError(f"a tensor is named {name!r}; a name is a word other than '__metadata__'")
        if not isinstance(tensor, torch.Tensor):
            raise ArgumentError(f"{name!r} is a {type(tensor).__name__}; only tensors are stored here")
        if tensor.layout != torch.strided or tensor.dtype not in _CODES or tensor.is_meta:
            raise ArgumentError(
                f"tensor {name!r} has dtype {tensor.dtype}, layout {tensor.layout} and device "
                f"{tensor.device}; only dense tensors with values, of {sorted(_CODES.values())}, are stored"
            )


def _split_tied(tensors: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Tensors by the first of their names, and the other names of each."""
    first: dict[tuple, str] = {}
    tied = {}
    for name, tensor in tensors.items():
        view = (tensor.device, tensor.dtype, tensor.data_ptr(), tuple(tensor.shape), tensor.stride())
        if tensor.numel() and first.setdefault(view, name) != name:
            tied[name] = first[view]
    return {name: tensor for name, tensor in tensors.items() if name not in tied}, tied


def _lay_out(tensors: dict[str, torch.Tensor]) -> tuple[dict[str, Entry], int]:
    """Wide numbers first, so that every tensor starts at a multiple of its number's size; then by name."""
    entries, start = {}, 0
    for name in sorted(tensors, key=lambda name: (-tensors[name].element_size(), name)):
        tensor = tensors[name]
        stop = start + tensor.numel() * tensor.element_size()
        entries[name] = Entry(_CODES[tensor.dtype], list(tensor.shape), start, stop)
        start = stop
    return entries, start


def _hash_tensor(entry: Entry, data: bytearray) -> str:
    digest = hashlib.sha256(f"{entry.code}{entry.shape}".encode())
    digest.update(data)
    return digest.hexdigest()


def _to_bytes(tensor: torch.Tensor) -> bytearray:
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().reshape(-1).contiguous().view(torch.uint8)
    data = bytearray(flat.numel())
    if data:
        torch.frombuffer(data, dtype=torch.uint8).copy_(flat)
    return data


# Reading


def _from_bytes(entry: Entry, data: bytearray, name: str, path: Path) -> torch.Tensor:
    dtype = DTYPES[entry.code]
    try:
        return (
            torch.frombuffer(data, dtype=dtype).reshape(entry.shape) if data else torch.empty(entry.shape, dtype=dtype)
        )
    except (RuntimeError, OverflowError) as error:
        raise CheckpointError(f"{path}: tensor {name!r} has a shape that torch cannot make ({error})") from error
