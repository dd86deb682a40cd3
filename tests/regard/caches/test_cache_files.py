"""A cache in a file comes back as it was, or not at all."""

import pytest
import torch

import regard as rg
from regard.layers.caches import RingCache, StaticCache, load_cache
from regard.storage import save_tensors


@pytest.fixture
def ring(tmp_path):
    cache = RingCache(2, 2, 3, dtype="int8", capacity=4)
    cache.append(torch.randn(2, 2, 7, 3), torch.randn(2, 2, 7, 3))
    cache.save(tmp_path / "ring")
    return cache


def test_every_changed_byte_is_refused(ring, tmp_path):
    whole = (tmp_path / "ring").read_bytes()
    for at in range(0, len(whole), 3):  # each bit of each byte: tests/regard/storage
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        (tmp_path / "damaged").write_bytes(damaged)
        with pytest.raises(rg.errors.CheckpointError):
            load_cache(tmp_path / "damaged")


def test_a_file_of_another_kind_is_refused(ring, tmp_path):
    with pytest.raises(
        rg.errors.CheckpointError, match="'ring' in format '1'; this version reads static"
    ):
        StaticCache.load(tmp_path / "ring")
    save_tensors(tmp_path / "weights", {"k": torch.zeros(1, 1, 1, 1)})
    with pytest.raises(rg.errors.CheckpointError, match="holds a cache of kind None"):
        load_cache(tmp_path / "weights")


def planes(**changes) -> dict[str, torch.Tensor]:
    found = {"k": torch.zeros(1, 2, 3, 4), "v": torch.zeros(1, 2, 3, 5)} | changes
    return {name: x for name, x in found.items() if x is not None}


def bytes_with(**changes) -> dict[str, torch.Tensor]:
    """The planes of an int8 cache, some of them others."""
    return (
        {n: x.to(torch.int8) for n, x in planes().items()}
        | {n: torch.ones(1, 2, 3, 1) for n in SCALES}
        | changes
    )


SCALES = ("k_scales", "v_scales")


@pytest.mark.parametrize(
    ("kind", "words", "tensors", "reason"),
    [
        ("dynamic", {"first": "x"}, planes(), "first is 'x'"),
        ("ring", {"first": "9" * 30, "capacity": "4"}, planes(), "not a whole number"),
        ("static", {"first": "0"}, planes(), "capacity is ''"),
        (
            "static",
            {"first": "0", "capacity": "2"},
            planes(),
            "3 entries from position 0, which a static",
        ),
        ("dynamic", {"first": "0"}, planes(v=None), "not the keys and values"),
        ("dynamic", {"first": "0"}, planes(v=torch.zeros(1, 2, 2, 5)), "not the keys and values"),
        (
            "dynamic",
            {"first": "0"},
            planes(k=torch.zeros(1, 2, 3, 4, dtype=torch.int8)),
            "not the keys and values",
        ),
        (
            "dynamic",
            {"first": "0"},
            planes(k_scales=torch.zeros(1, 2, 3, 1)),
            "not the keys and values",
        ),
        (
            "dynamic",
            {"first": "0"},
            bytes_with(k_scales=torch.ones(1, 2, 3, 1).double()),
            "not the keys and values",
        ),
        (
            "dynamic",
            {"first": "0"},
            bytes_with(v_scales=torch.ones(1, 2, 2, 1)),
            "not the keys and values",
        ),
        (
            "dynamic",
            {"first": "0"},
            planes(forgotten=torch.zeros(1, 2, 3, 1)),
            "not the keys and values",
        ),  # float32
        ("dynamic", {"first": "0", "v_dim": "2"}, planes(), "not the keys and values"),
        (
            "dynamic",
            {"first": "0", "v_dim": "5"},
            planes(v=None),
            "values of 5 numbers in keys of 4",
        ),
        ("dynamic", {"first": "2"}, planes(), "3 entries from position 2, which a dynamic"),
        (
            "dynamic",
            {"first": "2"},
            planes(places=torch.tensor([[[0, 5]]])),
            "places .* not those of entries",
        ),
        (
            "dynamic",
            {"first": "2"},
            planes(places=torch.tensor([[[3, 1]]])),
            "places .* not those of entries",
        ),
        (
            "dynamic",
            {"first": "2"},
            planes(places=torch.tensor([[[0.0]]])),
            "places .* not those of entries",
        ),
        (
            "dynamic",
            {"first": "0"},
            planes(places=torch.tensor([[[0]]])),
            "places .* not those of entries",
        ),
        (
            "ring",
            {"first": "2", "capacity": "4"},
            planes(places=torch.tensor([[[0]]])),
            "places .* not those of",
        ),
    ],
)
def test_a_well_sealed_file_that_says_what_cannot_be_is_refused(
    tmp_path, kind, words, tensors, reason
):
    save_tensors(tmp_path / "forged", tensors, {"cache": kind, "format": "1", **words})
    with pytest.raises(rg.errors.CheckpointError, match=reason):
        load_cache(tmp_path / "forged")


@pytest.mark.parametrize("kind", ["static", "ring"])
def test_a_file_that_names_a_capacity_without_memory_for_it_is_refused(kind, tmp_path):
    path = tmp_path / "cache.safetensors"
    entries = torch.ones(1, 2, 3, 5)
    words = {"cache": kind, "format": "1", "first": "0", "capacity": str(2**61)}
    save_tensors(path, {"k": entries, "v": entries.clone()}, words)
    with pytest.raises(rg.CheckpointError, match="cannot be allocated on cpu"):
        load_cache(path)
