"""Texts continued with a cache, in chunks of random lengths: what each chunk gives is what the whole text gives."""

from __future__ import annotations

import random
import traceback
from dataclasses import replace

import numpy as np
import torch

import regard as rg
from regard.layers.caches import new_cache

from .cases import Case, draw_case
from .judging import Verdict, compared
from .meanings import LEAVES, drawn
from .oracle import Tensors, detached, differentiated, named
from .tensors import Made

CACHED = [name for name, leaf in LEAVES.items() if leaf.cached]


def draw_continued(seed: int) -> Case:
    """A case whose queries are the positions of its keys; `chunks_of` and `kind_of` are functions of its seed too."""
    r = random.Random(f"continued {seed}")
    case = draw_case(seed)
    length = r.randint(1, 24) if r.random() < 0.9 else r.randint(25, 90)
    bias = case.bias if case.bias is not None and case.bias.kind != "tensor" else None
    learners = case.learners if bias is not None else tuple(x for x in case.learners if x != "bias")
    return replace(
        case, q_len=length, k_len=length, q_start=None, bias=bias, learners=learners, want=(), pulled=(), second=False,
        pattern=drawn(r, length, CACHED), layouts=("contiguous",) * 3, grad_layout="contiguous", hidden="",
        blocks="shipped", stored="",
    )  # fmt: skip


def chunks_of(case: Case) -> list[tuple[int, int]]:
    """(first, one past the last) position of each chunk."""
    r, at, chunks = random.Random(f"chunks {case.seed}"), 0, []
    while at < case.k_len:
        size = min(case.k_len - at, r.choice((1, 1, 2, 3, 5, 8, 17)))
        chunks.append((at, at + size))
        at += size
    return chunks


def kind_of(case: Case) -> tuple[str, dict[str, int]]:
    """Which cache, and how much it takes; a ring may be too small, and then refuses."""
    r = random.Random(f"kind {case.seed}")
    kind = r.choice(("dynamic", "static", "ring"))
    room = {"dynamic": {}, "static": {"capacity": case.k_len}, "ring": {"capacity": r.randint(1, case.k_len)}}
    return kind, room[kind]


def judge_continued(case: Case) -> list[Verdict]:
    """The verdict on each kind of cache that this case takes: named "cache dynamic" and so on."""
    made = Made(case)
    seen = np.zeros((case.q_len, case.k_len), bool)  # a query sees no key that was appended after its chunk
    for first, stop in chunks_of(case):
        seen[first:stop, :stop] = True
    made.mask = made.mask & seen
    kind, room = kind_of(case)
    name = f"cache {kind}"
    try:
        found = _continued(made, kind, room)
    except rg.ArgumentError as refusal:  # a ring that has forgotten what the pattern reaches
        return [
            Verdict(name, "refused" if kind == "ring" and "this cache holds" in str(refusal) else "off", str(refusal))
        ]
    except Exception:
        return [Verdict(name, "off", "raised " + traceback.format_exc(limit=-4))]
    return [compared(made, name, found, pieces=len(chunks_of(case)))]


def _continued(made: Made, kind: str, room: dict[str, int]) -> Tensors:
    case = made.case
    leaves = {name: made.tensor(name, bad=False) for name in ("q", "k", "v")}
    bias, leaf = made.bias()
    if leaf is not None:
        leaves["bias"] = leaf
    sink = made.given_sink()
    if "sink" in case.learners:
        leaves["sink"] = sink
    cache = new_cache(kind, case.batch, case.kv_heads, case.head_dim, v_dim=case.v_dim, dtype=made.dtype, **room)
    options = {
        "pattern": made.pattern(), "bias": bias, "softcap": case.softcap, "scale": case.scale, "dropout": case.dropout,
        "dropout_seed": case.dropout_seed, "sink": sink,
    }  # fmt: skip
    outputs = []
    with torch.set_grad_enabled(bool(case.learners)):
        for first, stop in chunks_of(case):
            q, k, v = (leaves[name][:, :, first:stop] for name in ("q", "k", "v"))
            keys, values = cache.append(k, v)
            outputs.append(rg.attention(q, keys, values, **options))
        whole = torch.cat(outputs, 2)
    found = {"output": whole}
    if case.learners:
        learning = {name: leaves[name] for name in case.learners}
        come = {"output": made.cotangents["output"]}
        found |= named(*differentiated(found, learning, come, None))
    return detached(found)
