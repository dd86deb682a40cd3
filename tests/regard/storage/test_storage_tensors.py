"""A file of tensors gives back what was put in, or says why not: never anything else."""

import errno
import hashlib
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


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert torch.equal(found[name], tensor)


def saved(folder: Path, tensors: dict[str, torch.Tensor] | None = None) -> Path:
    path = folder / "weights.safetensors"
    save_tensors(path, a_few_tensors() if tensors is None else tensors)
    return path


def forge(
    path: Path, entries: dict, manifest: object, data: bytes = b"", metadata: dict | None = None
) -> None:
    """A file with a right seal and whatever header: what an attacker can write, not what damage can."""
    words = {"regard_seal": "", "regard_manifest": json.dumps(manifest), **(metadata or {})}
    write_sealed_header(
        path, json.dumps({"__metadata__": words, **entries}, separators=(",", ":")), data
    )


def write_sealed_header(path: Path, text: str, data: bytes = b"") -> None:
    length = (len(text) + 64).to_bytes(8, "little")
    seal = hashlib.sha256(length + text.encode()).hexdigest()
    header = text[: len(OPENING)] + seal + text[len(OPENING) :]
    path.write_bytes(length + header.encode() + data)


def entry_hash(code: str, shape: list, data: bytes) -> str:
    return hashlib.sha256(f"{code}{shape}".encode() + data).hexdigest()


def test_tensors_come_back_with_values_dtypes_shapes_and_bits(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    views = {"transposed": base.T, "expanded": base[:1].expand(5, 4), "part": base[1:, ::2]}
    for given in (a_few_tensors(), views):
        assert_same(load_tensors(saved(tmp_path, given)), given)
    strange = torch.tensor([0x7FC00001, 0x7F800001], dtype=torch.int32).view(torch.float32)  # NaN
    assert torch.equal(
        load_tensors(saved(tmp_path, {"x": strange}))["x"].view(torch.int32),
        strange.view(torch.int32),
    )
    for dtype in DTYPES.values():
        tensor = torch.arange(12).reshape(3, 4).to(dtype)
        found = load_tensors(saved(tmp_path, {"x": tensor}))["x"]
        assert found.dtype == dtype
        assert torch.equal(found.view(torch.uint8), tensor.view(torch.uint8)), dtype


def test_tied_tensors_are_stored_once_and_come_back_as_one(tmp_path):
    big = torch.zeros(1000)
    once = saved(tmp_path, {"a": big}).stat().st_size
    path = saved(tmp_path, {"a": big, "b": big})
    assert path.stat().st_size < once + 200
    found = load_tensors(path)
    assert found["a"].data_ptr() == found["b"].data_ptr()
    found = load_tensors(saved(tmp_path, {"a": torch.ones(2), "b": torch.ones(2)}))
    assert found["a"].data_ptr() != found["b"].data_ptr()


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


@pytest.mark.parametrize(
    "tensors",
    [
        {"x": torch.eye(2).to_sparse()},
        {"x": torch.zeros(2, dtype=torch.complex128)},
        {"x": torch.empty(2, device="meta")},
        {"__metadata__": torch.ones(1)},
        {"x": [1.0]},
        {"x" * 2**24: torch.ones(1)},
    ],
    ids=[
        "sparse",
        "complex128",
        "meta",
        "reserved name",
        "list",
        "a name longer than a header may be",
    ],
)
def test_what_the_format_does_not_have_is_refused_and_nothing_written(tmp_path, tensors):
    with pytest.raises(ArgumentError):
        save_tensors(tmp_path / "x", tensors)
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
    path = saved(tmp_path, {"a": torch.arange(3.0), "b": torch.tensor([True, False])})
    for length in reversed(range(path.stat().st_size)):
        os.truncate(path, length)
        with pytest.raises(CheckpointError, match=r"weights\.safetensors"):
            load_tensors(path)


@pytest.mark.parametrize("bits", [(0, 3), pytest.param(range(8), marks=pytest.mark.slow)])
def test_flipped_bits_of_each_byte_are_refused(tmp_path, bits):
    path = saved(
        tmp_path,
        {"a": torch.arange(3.0), "b": torch.tensor([True, False])} if len(bits) == 2 else None,
    )
    flips = [(place, (place + bit) % 8) for place in range(path.stat().st_size) for bit in bits]
    assert len(flips) > (500 if len(bits) == 2 else 5000)
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


def one(code="F32", shape=(1,), offsets=(0, 4)) -> dict:
    return {"x": {"dtype": code, "shape": list(shape), "data_offsets": list(offsets)}}


def hashed(code: str, shape: list[int], data: bytes = bytes(4)) -> dict:
    return {"sha256": {"x": entry_hash(code, shape, data)}, "tied": {}}


HASH = hashed("F32", [1])


def test_the_forger_of_these_tests_can_write_a_good_file(tmp_path):
    forge(tmp_path / "x", one(), HASH, bytes(4))
    assert torch.equal(load_tensors(tmp_path / "x")["x"], torch.zeros(1))


@pytest.mark.parametrize(
    ("entries", "manifest", "data"),
    [
        (one(code="F99"), HASH, bytes(4)),
        (one(shape=(2,)), HASH, bytes(4)),
        (one(shape=(-1, -1)), hashed("F32", [-1, -1]), bytes(4)),  # as many numbers as (1, 1)
        (one(shape=(2**61,), offsets=(0, 2**63)), HASH, bytes(4)),
        (one(shape=[1] * 65), HASH, bytes(4)),
        (one(shape=(0, 2**61, 2**61), offsets=(0, 0)), hashed("F32", [0, 2**61, 2**61], b""), b""),
        (one(offsets=(4, 8)), HASH, bytes(8)),
        (
            one() | {"y": one()["x"]},
            {"sha256": HASH["sha256"] | {"y": HASH["sha256"]["x"]}, "tied": {}},
            bytes(4),
        ),
        (one(), HASH, bytes(3)),
        ({"x": None}, HASH, bytes(4)),
        (one(), {}, bytes(4)),
        (one(), {"sha256": {}, "tied": {}}, bytes(4)),
        (one(), {"sha256": HASH["sha256"] | {"y": "0"}, "tied": {}}, bytes(4)),
        (one(), HASH | {"tied": {"y": "z"}}, bytes(4)),
        (one(), HASH | {"tied": {"x": "x"}}, bytes(4)),
    ],
)
def test_a_sealed_lie_is_refused(tmp_path, entries, manifest, data):
    forge(tmp_path / "x", entries, manifest, data)
    with pytest.raises(CheckpointError):
        load_tensors(tmp_path / "x")


def test_an_empty_tensor_may_be_listed_after_the_one_that_begins_where_it_stands():
    entries = {
        "full": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
        "empty": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]},
    }
    assert list(checked_entries(entries, 8, 12, Path("model.safetensors"))) == ["full", "empty"]


@pytest.mark.parametrize(
    "text",
    [
        OPENING + '"}',
        OPENING + '","regard_manifest":7}}',
        OPENING + '","regard_manifest":"{"}}',
        OPENING + '","regard_manifest":"{\\"sha256\\":{},\\"tied\\":{}}","regard_manifest":"x"}}',
        OPENING + '","regard_manifest":"{\\"sha256\\":{},\\"tied\\":{}}","n":NaN}}',
        OPENING + '","regard_manifest":"{\\"sha256\\":{},\\"tied\\":{}}","n":{}}}',
        OPENING + '","x":' + "[" * 100_000 + "]" * 100_000 + "}}",
        OPENING,
    ],
    ids=[
        "no manifest",
        "number",
        "torn manifest",
        "repeats a key",
        "NaN",
        "not words",
        "depth",
        "cut",
    ],
)
def test_a_sealed_header_that_is_no_header_is_refused(tmp_path, text):
    write_sealed_header(tmp_path / "x", text)
    with pytest.raises(CheckpointError):
        load_tensors(tmp_path / "x")


def make_sparse(path: Path, head: bytes = b"") -> None:
    path.write_bytes(head)
    os.truncate(path, 10 * 2**30)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: None,
        Path.mkdir,
        os.mkfifo,
        lambda path: path.symlink_to(saved(path.parent)),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes((2**63).to_bytes(8, "little") + b"{}"),
        lambda path: path.write_bytes(b"\xff" * 64),
        make_sparse,
        lambda path: make_sparse(path, (9 * 2**30).to_bytes(8, "little")),
        lambda path: torch.save({"x": torch.ones(2)}, path),
    ],
    ids=[
        "missing",
        "folder",
        "pipe",
        "link",
        "no bytes",
        "2**63",
        "ones",
        "sparse",
        "sparse header",
        "pickle",
    ],
)
def test_a_file_of_another_world_is_refused_at_once(tmp_path, make):
    path = tmp_path / "x.safetensors"
    make(path)
    start = time.process_time()
    with pytest.raises(CheckpointError, match=r"x\.safetensors"):
        load_tensors(path)
    # a guard: to read what a sparse file claims to hold would take longer
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
