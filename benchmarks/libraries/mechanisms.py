"""Mechanisms of regard beside libraries that compute them: causal linear attention, and Bahdanau's scores."""

import warnings
from importlib import import_module

import torch
from torch.nn.functional import elu

from regard.errors import UnsupportedError
from regard.mechanisms import Additive, LinearTransformer, Softmax
from regard.patterns import Causal, Full
from regard_lab.bench.cases import contest_of, length_label
from regard_lab.bench.peers import SDPA_SOFTMAX
from regard_lab.bench.work import (
    CAUSAL,
    Attend,
    Case,
    Contender,
    Contest,
    Tensors,
    Work,
    unpromised,
)


def _broadcast(work: Work, tensors: Tensors) -> Attend:
    learned = tensors.parameters
    is_additive = set(learned) == {"query_weight", "key_weight", "energy"}
    if not is_additive or work.pattern != Full() or work.group > 1:
        raise UnsupportedError(f"it computes full additive attention without groups, not {work}")

    def attend() -> torch.Tensor:
        q = tensors.q @ learned["query_weight"].mT
        k = tensors.k @ learned["key_weight"].mT
        pairs = torch.tanh(q[:, :, :, None] + k[:, :, None])  # (batch, heads, q_len, k_len, hidden)
        scores = torch.einsum("bhqkd,hd->bhqk", pairs, learned["energy"])
        return scores.softmax(-1) @ tensors.v

    return attend


BROADCAST = Contender("tanh of a broadcast sum", _broadcast, judged_at=256)


ADDED = 1e-6  # to a denominator, as fast-transformers does


def _fast_transformers(work: Work, tensors: Tensors) -> Attend:
    if work.pattern != Causal() or work.group > 1:
        raise UnsupportedError(f"it is measured on causal attention without groups, not on {work}")
    product = import_module("fast_transformers.causal_product").causal_dot_product

    def attend() -> torch.Tensor:
        q = elu(tensors.q) + 1
        k = elu(tensors.k) + 1
        denominators = torch.einsum("bhnd,bhnd->bhn", q, k.cumsum(2)) + ADDED
        return product(q, k, tensors.v) / denominators[..., None]

    return attend


FAST_TRANSFORMERS = Contender("fast-transformers", _fast_transformers, package="fast_transformers")


def _performer(work: Work, tensors: Tensors) -> Attend:
    if work.pattern != Causal() or work.group > 1:
        raise UnsupportedError(f"it is measured on causal attention without groups, not on {work}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from distutils, which it imports
        performer = import_module("performer_pytorch.performer_pytorch")
    attend = performer.causal_linear_attention_noncuda
    return lambda: attend(elu(tensors.q) + 1, elu(tensors.k) + 1, tensors.v)


PERFORMER_PYTORCH = Contender("performer-pytorch", _performer, package="performer_pytorch")


def _linear(length: int, faster: dict[Contender, float], *, backward: bool = False) -> Contest:
    work = Work(length, heads=4, pattern=CAUSAL, mechanism=LinearTransformer(), backward=backward)
    others = (PERFORMER_PYTORCH, FAST_TRANSFORMERS, SDPA_SOFTMAX)
    return contest_of(length_label(work), work, others, faster)


def _additive(length: int, faster: dict[Contender, float], *, backward: bool = False) -> Contest:
    mechanism = Softmax(Additive(query_dim=128, key_dim=128, hidden=128))
    work = Work(length, heads=1, head_dim=128, mechanism=mechanism, backward=backward)
    return contest_of(length_label(work), work, (BROADCAST,), faster)


MECHANISM_CASES = (
    Case(
        "linear",
        "Causal linear attention, elu + 1",
        (
            _linear(
                4096,
                {PERFORMER_PYTORCH: 20, FAST_TRANSFORMERS: 1, SDPA_SOFTMAX: 3.5},
            ),
            _linear(4096, {PERFORMER_PYTORCH: 22, FAST_TRANSFORMERS: 1}, backward=True),
        ),
        (_linear(1024, {}), _linear(1024, {}, backward=True)),
    ),
    Case(
        "additive",
        "Bahdanau's attention, 128 hidden numbers",
        (
            _additive(2048, {BROADCAST: 1}),
            _additive(2048, {BROADCAST: 1}, backward=True),
        ),
        unpromised([_additive(512, {})]),
    ),
)
