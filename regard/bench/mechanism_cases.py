"""The cases of the other mechanisms: each against the packages that compute it, and its memory as texts grow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from regard.bench.case import Case, Contender, Contest, unpromised
from regard.bench.ours import REGARD, at_length
from regard.bench.peers.broadcast import BROADCAST
from regard.bench.peers.fast_transformers import FAST_TRANSFORMERS
from regard.bench.peers.performer_pytorch import PERFORMER_PYTORCH
from regard.bench.peers.reformer_pytorch import REFORMER
from regard.bench.peers.torch_sdpa import SDPA_SOFTMAX
from regard.bench.promises import Promise
from regard.bench.subjects import CAUSAL, FULL
from regard.bench.work import Work
from regard.mechanisms import LSH, Additive, LinearTransformer, Linformer, Mechanism, Performer, RandomFeature, Softmax
from regard.patterns import Pattern

ADDITIVE_MIB = 64  # beside what the call is given


def _linear(length: int, faster: dict[Contender, float], *, backward: bool = False) -> Contest:
    work = Work(length, heads=4, pattern=CAUSAL, mechanism=LinearTransformer(), backward=backward)
    return _against(work, (PERFORMER_PYTORCH, FAST_TRANSFORMERS, SDPA_SOFTMAX), faster)


def _hashed(length: int, faster: dict[Contender, float], *, backward: bool = False) -> Contest:
    work = Work(length, heads=4, mechanism=LSH(chunk=64, buckets=length // 64, rounds=4), backward=backward)
    return _against(work, (REFORMER,), faster)


def _additive(length: int, faster: dict[Contender, float], *, backward: bool = False) -> Contest:
    mechanism = Softmax(Additive(query_dim=128, key_dim=128, hidden=128))
    contest = _against(
        Work(length, heads=1, head_dim=128, mechanism=mechanism, backward=backward), (BROADCAST,), faster
    )
    promises = (*contest.promises, Promise("holds", REGARD.name, "", ADDITIVE_MIB))
    return replace(contest, promises=promises, memory=(REGARD.name, BROADCAST.name))


def _against(work: Work, peers: tuple[Contender, ...], faster: dict[Contender, float]) -> Contest:
    label = f"n={work.q_len}" + (", forward + backward" if work.backward else "")
    promises = tuple(Promise("faster", REGARD.name, peer.name, bound) for peer, bound in faster.items())
    return Contest(label, work, (REGARD, *peers), promises)


def _growing(mechanism: Mechanism, pattern: Pattern, lengths: tuple[int, ...]) -> Contest:
    """Memory at lengths that double; it may not grow by more than 2.2 each time."""
    longer = tuple(at_length(n) for n in lengths[1:])
    names = (REGARD.name, *(one.name for one in longer))
    promises = tuple(Promise("more memory", larger, smaller, 2.2) for smaller, larger in pairwise(names))
    work = Work(lengths[0], heads=2, pattern=pattern, mechanism=mechanism)
    first = replace(REGARD, judged_at=longer[0].judged_at)
    return Contest(f"{mechanism}, {pattern}", work, (first, *longer), promises, timed=False, memory=names)


def _memory(lengths: tuple[int, ...]) -> tuple[Contest, ...]:
    subjects: Iterable[tuple[Mechanism, Pattern]] = (
        (LinearTransformer(), CAUSAL), (Performer(features=128), CAUSAL), (RandomFeature(features=64), CAUSAL),
        (LinearTransformer(), FULL), (Linformer(lengths[-1], rank=64), FULL),
    )  # fmt: skip
    return tuple(_growing(mechanism, pattern, lengths) for mechanism, pattern in subjects)


MECHANISM_CASES = (
    Case(
        "linear", "Causal linear attention, elu + 1",
        (
            _linear(4096, {PERFORMER_PYTORCH: 20, FAST_TRANSFORMERS: 1, SDPA_SOFTMAX: 3.5}),
            _linear(4096, {PERFORMER_PYTORCH: 22, FAST_TRANSFORMERS: 1}, backward=True),
        ),
        (_linear(1024, {}), _linear(1024, {}, backward=True)),
    ),
    Case(
        "hashed", "The Reformer's attention, chunks of 64, 4 rounds",
        (*(_hashed(n, {REFORMER: 1}, backward=backward) for n in (4096, 16384) for backward in (False, True)),),
        (_hashed(1024, {}),),
    ),
    Case(
        "additive", "Bahdanau's attention, 128 hidden numbers",
        (_additive(2048, {BROADCAST: 1}), _additive(2048, {BROADCAST: 1}, backward=True)),
        unpromised([_additive(512, {})]),
    ),
    Case(
        "linear-memory", "Memory of the linear mechanisms as texts double",
        _memory(tuple(2**power for power in range(12, 17))),
        unpromised(_memory((4096, 8192))[:1]),
    ),
)  # fmt: skip
