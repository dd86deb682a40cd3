"""Metamorphic laws of every mechanism for which they hold, with random sizes and patterns, on any backend that computes
the call. What holds for softmax alone, with every pattern, is in test_laws.py."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from asking import ask, computes
from hypothesis import assume, given
from hypothesis import strategies as st
from law_examples import law
from mechanism_cells import LENGTH, MECHANISMS, Call, make_call
from small_blocks import cut

from regard import mechanisms as m
from regard import patterns as p
from regard.backends import BACKENDS
from regard.mechanisms.base import Mechanism, takes

EXACT = {"rtol": 1e-10, "atol": 1e-10}
lengths, seeds, orders = st.integers(1, LENGTH), st.integers(0, 99), st.permutations(range(3))
several = law(4)
NAMES = tuple(BACKENDS)
choices = st.integers(0, len(NAMES) - 1)
GATED = "gated-random-feature"
BY_PLACE = (GATED, "lsh", "linformer", "local-predictive")  # a key counts by its position, too


def those(holds) -> pytest.MarkDecorator:
    """The mechanisms for which a law holds."""
    return pytest.mark.parametrize("name", [name for name, kind in MECHANISMS.items() if holds(name, kind)])


every = those(lambda name, kind: True)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    cut(monkeypatch)


@dataclass(frozen=True)
class Drawn:
    """A call of a mechanism with a pattern that it takes, and the first of the backends that are asked."""

    call: Call
    pattern: p.Pattern
    choice: int  # an index of NAMES

    def __call__(self, q=None, k=None, v=None, **options) -> torch.Tensor:
        """The output for these tensors instead of those of the call; LSH takes the last keys as queries."""
        k = self.call.k if k is None else k
        if self.call.mechanism.shares_keys:
            q = k if q is None else k[:, :, -q.shape[2] :]
        q = self.call.q if q is None else q
        v = self.call.v if v is None else v
        options = {"pattern": self.pattern, **self.call.options, **options}
        names = NAMES[self.choice :] + NAMES[: self.choice]
        backend = next(one for one in names if computes(one, q, k, v, **options))
        return ask(backend, q, k, v, **options).output


@st.composite
def calls(draw, name: str, parts: tuple[type[p.Pattern], ...] = (p.Causal, p.KeySpan, p.SameDocument)) -> Drawn:
    """A call with a pattern of those parts that the mechanism takes; one that must be causal is."""
    kind: Mechanism = MECHANISMS[name]
    kv_heads, group = draw(st.sampled_from([(1, 1), (3, 1), (1, 3), (3, 2)]))
    k_len, seed = draw(lengths), draw(seeds)
    q_len = k_len if kind.shares_keys else draw(lengths)
    sizes = {"batch": 3, "heads": kv_heads * (1 if kind.shares_keys else group), "kv_heads": kv_heads}
    call = make_call(name, **sizes, q_len=q_len, k_len=k_len, v_dim=4, seed=seed)
    pattern: p.Pattern = p.Causal() if name == GATED else p.Full()
    for part in parts:
        if takes(kind, part) and draw(st.booleans()):
            pattern = pattern & draw(OF_PART[part](k_len))
    return Drawn(call, pattern, draw(choices))


def spans(k_len: int) -> st.SearchStrategy[p.Pattern]:
    places = st.integers(0, k_len)
    by_row = st.lists(places, min_size=3, max_size=3).map(torch.tensor)
    return st.builds(p.KeySpan, places | by_row, st.none() | places | by_row)


def documents(k_len: int) -> st.SearchStrategy[p.Pattern]:
    return st.lists(st.integers(0, 2), min_size=k_len, max_size=k_len).map(
        lambda ids: p.SameDocument(torch.tensor(ids))
    )


OF_PART = {p.Causal: lambda k_len: st.just(p.Causal()), p.KeySpan: spans, p.SameDocument: documents}


def same(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other, **EXACT)


def by_key(call: Call, keys: slice | torch.Tensor) -> dict[str, torch.Tensor] | None:
    """The parameters of these keys alone."""
    parameters = call.parameters or {}
    return {one: x[..., keys] if one == "gate" else x for one, x in parameters.items()} or None


@those(lambda name, kind: takes(kind, p.Causal))
@several
@given(st.data())
def test_an_edit_of_the_future_changes_nothing_in_the_past(name, data):
    drawn = data.draw(calls(name))
    call = drawn.call
    causal = Drawn(call, p.Causal() & drawn.pattern, drawn.choice)
    before = causal()
    k_len, q_len = call.k.shape[2], call.q.shape[2]
    now = data.draw(st.integers(0, k_len - 1))  # the last key that stays
    edited = {one: x.clone() for one, x in zip("qkv", call.tensors, strict=True)}
    rows = max(0, now + 1 - (k_len - q_len))  # queries that look no further
    factor = data.draw(st.sampled_from([-3.0, 0.0, 50.0]))
    for one, first in (("q", rows), ("k", now + 1), ("v", now + 1)):
        edited[one][:, :, first:] *= factor
    parameters = {one: x.clone() for one, x in (call.parameters or {}).items()}
    if "gate" in parameters:
        parameters["gate"][..., now + 1 :] = 0.3
    after = causal(**edited, parameters=parameters or None)
    same(after[:, :, :rows], before[:, :, :rows])


@every
@several
@given(st.data(), orders)
def test_batch_rows_may_change_places(name, data, order):
    drawn = data.draw(calls(name, (p.Causal, p.SameDocument)))
    call = drawn.call
    parameters = {one: x[order] if one == "gate" else x for one, x in (call.parameters or {}).items()}
    moved = drawn(*(x[order] for x in call.tensors), parameters=parameters or None)
    same(moved, drawn()[order])


@every
@several
@given(st.data(), orders)
def test_groups_of_heads_may_change_places(name, data, order):
    drawn = data.draw(calls(name))
    call = drawn.call
    assume(call.k.shape[1] == 3)
    group = call.q.shape[1] // 3
    rows = [head * group + at for head in order for at in range(group)]
    of_heads = {3: order, 3 * group: rows}  # parameters have an entry for each key/value head, or for each query head
    parameters = {
        one: x[:, order] if one == "gate" else x[of_heads[len(x)]] if len(x) in of_heads else x
        for one, x in (call.parameters or {}).items()
    }
    moved = drawn(call.q[:, rows], call.k[:, order], call.v[:, order], parameters=parameters or None)
    same(moved, drawn()[:, rows])


@every
@several
@given(st.data())
def test_values_enter_linearly(name, data):
    drawn = data.draw(calls(name))
    other = drawn.call.k[..., :4]
    same(drawn(v=3 * drawn.call.v + other), 3 * drawn() + drawn(v=other))


@those(lambda name, kind: not kind.shares_keys)
@several
@given(st.data())
def test_grouped_heads_equal_repeated_heads(name, data):
    drawn = data.draw(calls(name))
    call = drawn.call
    heads, kv_heads = call.q.shape[1], call.k.shape[1]
    k, v = (x.repeat_interleave(heads // kv_heads, 1) for x in (call.k, call.v))
    wanted = call.mechanism.parameter_shapes(m.base.Sizes(3, heads, heads, k.shape[2]))
    parameters = {
        one: x if x.shape == wanted[one] else x.repeat_interleave(heads // kv_heads, 1 if one == "gate" else 0)
        for one, x in (call.parameters or {}).items()
    }
    same(drawn(k=k, v=v, parameters=parameters or None), drawn())


@those(lambda name, kind: takes(kind, p.KeySpan))
@several
@given(st.data())
def test_padding_on_both_sides_equals_removed_keys(name, data):
    drawn = data.draw(calls(name, (p.Causal,)))
    call = drawn.call
    k_len = call.k.shape[2]
    first = 0 if name == "linformer" else data.draw(st.integers(0, k_len - 1))  # its columns belong to positions
    live = slice(first, data.draw(st.integers(first + 1, k_len)))
    padded = Drawn(call, drawn.pattern & p.KeySpan(live.start, live.stop), drawn.choice)()
    k, v = call.k[:, :, live], call.v[:, :, live]
    start = k_len - call.q.shape[2] - live.start
    options = {} if call.mechanism.shares_keys or name == "linformer" else {"q_start": start}
    removed = drawn(k=k, v=v, parameters=by_key(call, live), **options)
    same(padded[:, :, live] if call.mechanism.shares_keys else padded, removed)


@those(lambda name, kind: name not in BY_PLACE)
@several
@given(st.data())
def test_keys_with_their_values_may_change_places(name, data):
    drawn = data.draw(calls(name, ()))
    order = data.draw(st.permutations(range(drawn.call.k.shape[2])))
    same(drawn(k=drawn.call.k[:, :, order], v=drawn.call.v[:, :, order]), drawn())


@those(lambda name, kind: name in ("softmax", "dot", "general"))
@several
@given(st.data())
def test_a_shift_of_all_keys_means_nothing(name, data):
    drawn = data.draw(calls(name))
    shift = data.draw(st.sampled_from([0.5, -2.0])) * torch.arange(1.0, 6.0, dtype=torch.float64)
    same(drawn(k=drawn.call.k + shift), drawn())


@those(lambda name, kind: takes(kind, p.SameDocument) and not kind.counts_keys)
@several
@given(st.data(), st.lists(st.integers(1, 5), min_size=1, max_size=2))
def test_packed_texts_equal_texts_apart(name, data, sizes):
    length = sum(sizes)
    call = make_call(name, batch=2, heads=2, kv_heads=1, q_len=length, k_len=length, v_dim=4, seed=data.draw(seeds))
    pattern = p.Causal() if name == GATED or data.draw(st.booleans()) else p.Full()
    ids = p.SameDocument(torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)))
    drawn = Drawn(call, pattern, data.draw(choices))
    packed = drawn(pattern=pattern & ids)
    start = 0
    for size in sizes:
        text = slice(start, start + size)
        alone = drawn(*(x[:, :, text] for x in call.tensors), parameters=by_key(call, text))
        same(packed[:, :, text], alone)
        start += size


@those(lambda name, kind: takes(kind, p.Causal) and not kind.counts_keys)
@several
@given(st.data())
def test_a_text_that_is_continued_equals_the_whole(name, data):
    """The first keys alone, and the last queries alone, give what the whole gives."""
    drawn = data.draw(calls(name, (p.SameDocument,)))
    call = drawn.call
    k_len, q_len = call.k.shape[2], call.q.shape[2]
    causal = Drawn(call, p.Causal() & drawn.pattern, drawn.choice)
    whole = causal()
    now = data.draw(st.integers(1, k_len))
    rows = max(0, now - (k_len - q_len))
    if rows:
        k, v = call.k[:, :, :now], call.v[:, :, :now]
        same(causal(call.q[:, :, :rows], k, v, parameters=by_key(call, slice(0, now))), whole[:, :, :rows])
    last = data.draw(st.integers(1, q_len))
    same(causal(call.q[:, :, -last:]), whole[:, :, -last:])
