"""A file of tensors gives back what was put in, or says why not: never anything else."""

import errno
import hashlib
import itertools
import json
import os
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch

from regard.errors import ArgumentError, CheckpointError
from regard.storage import load_tensor_metadata, load_tensors, save_tensors, tensors
from regard.storage.tensors import DTYPES, checked_entries

OPENING = '{"__metadata__":{"regard_seal":"'


def a_few_tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(2, 3, generator=generator)
    return {
        "embedding": shared,
        "output": shared,
        "half": torch.randn(3, generator=generator).bfloat16(),
        "mask": torch.tensor([True, False, True]),
        "step": torch.tensor(7),
        "empty": torch.zeros(0, 4),
    }


def assert_same(tensors: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        assert tensors[name].dtype == tensor.dtype
        assert tensors[name].shape == tensor.shape
        assert torch.equal(tensors[name], tensor)


def saved(folder: Path, tensors: dict[str, torch.Tensor] | None = None) -> Path:
    path = folder / "weights.safetensors"
    save_tensors(path, a_few_tensors() if tensors is None else tensors)
    return path


def forge(path: Path, entries: dict, manifest: object, data: bytes) -> None:
    """A file with a right seal and whatever header: what an attacker can write, not what damage can."""
    words = {"regard_seal": "", "regard_manifest": json.dumps(manifest)}
    text = json.dumps({"__metadata__": words, **entries}, separators=(",", ":"))
    write_sealed_header(path, text, data)


def write_sealed_header(path: Path, text: str, data: bytes = b"") -> None:
    length = (len(text) + 64).to_bytes(8, "little")
    seal = hashlib.sha256(length + text.encode()).hexdigest()
    header = text[: len(OPENING)] + seal + text[len(OPENING) :]
    path.write_bytes(length + header.encode() + data)


TWO = {"a": torch.arange(3.0), "b": torch.tensor([True, False])}


def test_tensors_come_back_with_values_dtypes_shapes_and_bits(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    views = {"transposed": base.T, "expanded": base[:1].expand(5, 4), "part": base[1:, ::2]}
    for tensors_by_name in (a_few_tensors(), views):
        assert_same(load_tensors(saved(tmp_path, tensors_by_name)), tensors_by_name)
    bits_of_nan = torch.tensor([0x7FC00001, 0x7F800001], dtype=torch.int32)
    loaded = load_tensors(saved(tmp_path, {"x": bits_of_nan.view(torch.float32)}))["x"]
    assert torch.equal(loaded.view(torch.int32), bits_of_nan)
    for dtype in DTYPES.values():
        tensor = torch.arange(12).reshape(3, 4).to(dtype)
        loaded = load_tensors(saved(tmp_path, {"x": tensor}))["x"]
        assert loaded.dtype == dtype
        assert torch.equal(loaded.view(torch.uint8), tensor.view(torch.uint8)), dtype


def test_tied_tensors_are_stored_once_and_come_back_as_one(tmp_path):
    big = torch.zeros(1000)
    once = saved(tmp_path, {"a": big}).stat().st_size
    path = saved(tmp_path, {"a": big, "b": big})
    assert path.stat().st_size < once + 200
    tied = load_tensors(path)
    assert tied["a"].data_ptr() == tied["b"].data_ptr()
    equal = load_tensors(saved(tmp_path, {"a": torch.ones(2), "b": torch.ones(2)}))
    assert equal["a"].data_ptr() != equal["b"].data_ptr()


def test_the_same_content_gives_the_same_bytes_and_seal_and_another_one_is_refused(tmp_path):
    seal = save_tensors(tmp_path / "a", a_few_tensors())
    assert save_tensors(tmp_path / "b", a_few_tensors()) == seal
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    save_tensors(tmp_path / "b", {"x": torch.ones(2)})
    with pytest.raises(CheckpointError, match="seals differ"):
        load_tensors(tmp_path / "b", seal=seal)


def test_the_safetensors_package_reads_the_same_tensors_and_its_own_files_carry_no_seal(tmp_path):
    path = saved(tmp_path)
    expected = a_few_tensors()
    del expected["output"]  # tied: known to that package under its first name alone
    assert_same(safetensors.torch.load_file(path), expected)
    safetensors.torch.save_file({"x": torch.ones(2)}, tmp_path / "x")
    with pytest.raises(CheckpointError, match="no checksum"):
        load_tensors(tmp_path / "x")


NOT_STORED = {
    "sparse": {"x": torch.eye(2).to_sparse()},
    "complex128": {"x": torch.zeros(2, dtype=torch.complex128)},
    "meta": {"x": torch.empty(2, device="meta")},
    "reserved name": {"__metadata__": torch.ones(1)},
    "list": {"x": [1.0]},
    "a name longer than a header may be": {"x" * 2**24: torch.ones(1)},
}


@pytest.mark.parametrize("name", NOT_STORED)
def test_what_the_format_does_not_have_is_refused_and_nothing_written(tmp_path, name):
    with pytest.raises(ArgumentError):
        save_tensors(tmp_path / "x", NOT_STORED[name])
    assert list(tmp_path.iterdir()) == []


# Damage


def silent_flips(path: Path, flips: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The (byte, bit) places whose change loads all the same."""
    silent = []
    with open(path, "r+b", buffering=0) as file:
        for place, bit in flips:
            byte = os.pread(file.fileno(), 1, place)
            os.pwrite(file.fileno(), bytes([byte[0] ^ 1 << bit]), place)
            try:
                load_tensors(path)
                silent.append((place, bit))
            except CheckpointError:
                pass
            os.pwrite(file.fileno(), byte, place)
    load_tensors(path)  # as at first: the flips were undone
    return silent


def test_every_truncation_is_refused(tmp_path):
    path = saved(tmp_path, TWO)
    for length in reversed(range(path.stat().st_size)):
        os.truncate(path, length)
        with pytest.raises(CheckpointError, match=r"weights\.safetensors"):
            load_tensors(path)


@pytest.mark.parametrize("bits", [(0, 3), pytest.param(range(8), marks=pytest.mark.slow)])
def test_flipped_bits_of_each_byte_are_refused(tmp_path, bits):
    everyday = len(bits) == 2
    path = saved(tmp_path, TWO if everyday else None)
    flips = []
    for place, bit in itertools.product(range(path.stat().st_size), bits):
        flips.append((place, (place + bit) % 8))
    assert len(flips) > (500 if everyday else 5000)
    assert silent_flips(path, flips) == []


def test_trailing_bytes_are_refused_and_the_damaged_tensor_is_named(tmp_path):
    path = saved(tmp_path, {"first": torch.zeros(4), "second": torch.zeros(4)})
    data = path.read_bytes()
    for junk in (b"\0", b"{}", b"\0" * 4096):
        path.write_bytes(data + junk)
        with pytest.raises(CheckpointError, match="describes"):
            load_tensors(path)
    path.write_bytes(data[:-1] + b"\1")
    with pytest.raises(CheckpointError, match="tensor 'second' does not match its SHA-256"):
        load_tensors(path)


# Files that were never ours


def entry_of_x(code="F32", shape=(1,), offsets=(0, 4)) -> dict:
    return {"x": {"dtype": code, "shape": list(shape), "data_offsets": list(offsets)}}


def manifest_of_x(code: str, shape: list[int], data: bytes = bytes(4)) -> dict:
    digest = hashlib.sha256(f"{code}{shape}".encode() + data).hexdigest()
    return {"sha256": {"x": digest}, "tied": {}}


ENTRY = entry_of_x()
MANIFEST = manifest_of_x("F32", [1])
HASH = MANIFEST["sha256"]
HUGE = [0, 2**61, 2**61]


def test_the_forger_of_these_tests_can_write_a_good_file(tmp_path):
    forge(tmp_path / "x", ENTRY, MANIFEST, bytes(4))
    assert torch.equal(load_tensors(tmp_path / "x")["x"], torch.zeros(1))


# Entries, manifest and the number of bytes of a file.
LIES = {
    "dtype": (entry_of_x(code="F99"), MANIFEST, 4),
    "shape": (entry_of_x(shape=(2,)), MANIFEST, 4),
    # These are as many numbers as (1, 1).
    "negative shape": (entry_of_x(shape=(-1, -1)), manifest_of_x("F32", [-1, -1]), 4),
    "far end": (entry_of_x(shape=(2**61,), offsets=(0, 2**63)), MANIFEST, 4),
    "axes": (entry_of_x(shape=[1] * 65), manifest_of_x("F32", [1] * 65), 4),
    "empty": (entry_of_x(shape=HUGE, offsets=(0, 0)), manifest_of_x("F32", HUGE, b""), 0),
    "gap": (entry_of_x(offsets=(4, 8)), MANIFEST, 8),
    "overlap": (ENTRY | {"y": ENTRY["x"]}, {"sha256": HASH | {"y": HASH["x"]}, "tied": {}}, 4),
    "length": (ENTRY, MANIFEST, 3),
    "no entry": ({"x": None}, MANIFEST, 4),
    "no manifest": (ENTRY, {}, 4),
    "no hash": (ENTRY, {"sha256": {}, "tied": {}}, 4),
    "hash of nothing": (ENTRY, {"sha256": HASH | {"y": "0"}, "tied": {}}, 4),
    "tied to nothing": (ENTRY, MANIFEST | {"tied": {"y": "z"}}, 4),
    "tied to itself": (ENTRY, MANIFEST | {"tied": {"x": "x"}}, 4),
}


@pytest.mark.parametrize("name", LIES)
def test_a_sealed_lie_is_refused(tmp_path, name):
    entries, manifest, length = LIES[name]
    forge(tmp_path / "x", entries, manifest, bytes(length))
    with pytest.raises(CheckpointError):
        load_tensors(tmp_path / "x")


def test_an_empty_tensor_may_be_listed_after_the_one_that_begins_where_it_stands():
    entries = {
        "full": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
        "empty": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]},
    }
    assert list(checked_entries(entries, 8, 12, Path("model.safetensors"))) == ["full", "empty"]


WITH_MANIFEST = OPENING + '","regard_manifest":"{\\"sha256\\":{},\\"tied\\":{}}"'
NO_HEADERS = {
    "no manifest": OPENING + '"}',
    "number": OPENING + '","regard_manifest":7}}',
    "torn manifest": OPENING + '","regard_manifest":"{"}}',
    "repeats a key": WITH_MANIFEST + ',"regard_manifest":"x"}}',
    "NaN": WITH_MANIFEST + ',"n":NaN}}',
    "not words": WITH_MANIFEST + ',"n":{}}}',
    "depth": OPENING + '","x":' + "[" * 100_000 + "]" * 100_000 + "}}",
    "cut": OPENING,
}


@pytest.mark.parametrize("name", NO_HEADERS)
def test_a_sealed_header_that_is_no_header_is_refused(tmp_path, name):
    write_sealed_header(tmp_path / "x", NO_HEADERS[name])
    with pytest.raises(CheckpointError):
        load_tensors(tmp_path / "x")


def make_sparse(path: Path, head: bytes = b"") -> None:
    path.write_bytes(head)
    os.truncate(path, 10 * 2**30)


OTHER_FILES = {
    "missing": lambda path: None,
    "folder": Path.mkdir,
    "pipe": os.mkfifo,
    "link": lambda path: path.symlink_to(saved(path.parent)),
    "no bytes": lambda path: path.write_bytes(b""),
    "2**63": lambda path: path.write_bytes((2**63).to_bytes(8, "little") + b"{}"),
    "ones": lambda path: path.write_bytes(b"\xff" * 64),
    "sparse": make_sparse,
    "sparse header": lambda path: make_sparse(path, (9 * 2**30).to_bytes(8, "little")),
    "pickle": lambda path: torch.save({"x": torch.ones(2)}, path),
}


@pytest.mark.parametrize("name", OTHER_FILES)
def test_a_file_of_another_kind_is_refused_at_once(tmp_path, name):
    path = tmp_path / "x.safetensors"
    OTHER_FILES[name](path)
    start = time.process_time()
    with pytest.raises(CheckpointError, match=r"x\.safetensors"):
        load_tensors(path)
    # Reading what a sparse file claims to hold would take longer.
    assert time.process_time() - start < 10


def test_every_tensor_begins_at_a_multiple_of_the_bytes_of_its_numbers(tmp_path):
    """A reader may map the file and use it as it is, which some processors allow for aligned numbers only."""
    dtypes = {"a": torch.int8, "b": torch.float16, "c": torch.float32, "d": torch.float64}
    path = saved(tmp_path, {name: torch.ones(3, dtype=dtype) for name, dtype in dtypes.items()})
    length = int.from_bytes(path.read_bytes()[:8], "little")
    assert length % 8 == 0
    header = json.loads(path.read_bytes()[8 : 8 + length])
    for name, dtype in dtypes.items():
        assert (8 + length + header[name]["data_offsets"][0]) % dtype.itemsize == 0, name


def test_a_file_whose_reading_fails_is_refused_with_a_sentence(tmp_path, monkeypatch):
    save_tensors(tmp_path / "x", {"a": torch.ones(3)})

    def fails(file, path):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(tensors, "read_header", fails)
    for read in (load_tensors, load_tensor_metadata):
        with pytest.raises(CheckpointError, match=r"x cannot be read: Input/output error"):
            read(tmp_path / "x")
