"""Every public call that takes tensors, with tensors for each of its arguments, and what the signatures name."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from mechanism_cells import MECHANISMS, MechanismExample, make_call

import regard as rg
from regard import bias as b
from regard import mechanisms as m
from regard import patterns as p
from regard import positions as at
from regard.core.tensors import Stored
from regard.layers import (
    NSA,
    FeedForward,
    LatentAttention,
    LightningIndexer,
    MoBA,
    ProjectedContext,
    ValueResidual,
)
from regard.layers import caches as c
from regard.layers.projection import Projection, project
from regard.patterns.bands import Diagonals
from regard.patterns.fixed import Summary
from regard.patterns.grid import Grid
from regard.patterns.position_sets import KeySet, QuerySet
from regard.patterns.strided import Lattice

Tensor = torch.Tensor
PACKAGES = (
    "regard",
    "regard.patterns",
    "regard.mechanisms",
    "regard.bias",
    "regard.positions",
    "regard.layers",
    "regard.layers.caches",
    "regard.distributed",
    "regard.functional",
)
# Annotations of arguments that take tensors without saying Tensor.
TAKES_TENSORS = ("Tensor", "ByRow", "End")
BATCH = 3
HEADS = 4
KV_HEADS = 2
ROWS = 5
KEYS = 7
DIM = 6


@dataclass(frozen=True)
class TensorCall:
    """A call and its tensors by the names of its arguments; "parameters.NAME" is a tensor of a mapping."""

    tensors: dict[str, Tensor]
    call: Callable[..., Any]

    @property
    def arguments(self) -> set[str]:
        return {name.partition(".")[0] for name in self.tensors}

    def run(self, **changed: Tensor) -> list[Tensor]:
        """The tensors that the call returns, in order."""
        arguments: dict[str, Any] = {}
        for name, x in {**self.tensors, **changed}.items():
            argument, _, key = name.partition(".")
            if key:
                arguments.setdefault(argument, {})[key] = x
            else:
                arguments[argument] = x
        return list(flat(self.call(**arguments)))


def flat(result: Any) -> Iterator[Tensor]:
    """The tensors in a result."""
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, Stored):
        yield result.widened(torch.float32)
    elif isinstance(result, p.Pattern):
        yield result.dense(ROWS, KEYS)
    elif isinstance(result, rg.AttentionDetail):
        yield from (result.output, result.log_sum_exp, result.entropy)
    elif isinstance(result, dict):
        yield from flat(list(result.values()))
    elif isinstance(result, tuple | list):
        for part in result:
            yield from flat(part)
    elif isinstance(result, int | float):
        yield torch.tensor(float(result))
    elif hasattr(result, "__dict__"):
        yield from flat(vars(result))


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def numbers(*values: int) -> Tensor:
    return torch.tensor(values)


def queries(rows: int = ROWS) -> dict[str, Tensor]:
    return {
        "q": drawn(BATCH, HEADS, rows, DIM, seed=2),
        "k": drawn(BATCH, KV_HEADS, KEYS, DIM, seed=3),
        "v": drawn(BATCH, KV_HEADS, KEYS, DIM, seed=4),
    }


OPTIONS = {
    **queries(),
    "bias": drawn(HEADS, ROWS, KEYS, seed=5),
    "sink": drawn(HEADS, seed=6),
    "q_start": numbers(2, 0, 1),
}


def of_causal(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda **given: function(**given, pattern="causal")


def planned(method: str, **want: Any) -> Callable[..., Any]:
    def call(q: Tensor, k: Tensor, v: Tensor, **given: Any) -> Any:
        plan = rg.plan_attention(q, k, v, pattern="causal", **want, **given)
        return getattr(plan, method)(q, k, v, **given)

    return call


def varlen(**given: Any) -> Tensor:
    return rg.attention_varlen(**given, pattern="causal")


def cache_of(kind: str, **options: Any) -> c.Cache:
    capacity = None if kind in ("dynamic", "paged") else 3 * KEYS
    return c.new_cache(kind, BATCH, KV_HEADS, DIM, capacity=capacity, **options)


def appended(kind: str, dtype: str) -> Callable[..., Any]:
    def call(k: Tensor, v: Tensor) -> Any:
        cache = cache_of(kind, dtype=dtype)
        return [cache.append(k, v), cache.append(k, v)]

    return call


def filled(kind: str) -> c.Cache:
    cache = cache_of(kind)
    cache.append(queries()["k"], queries()["v"])
    return cache


def after(kind: str, method: str) -> Callable[..., Any]:
    def call(**given: Tensor) -> Any:
        cache = filled(kind)
        getattr(cache, method)(*given.values())
        return [cache.keys, cache.values]

    return call


def state_calls() -> dict[str, TensorCall]:
    """A state of every mechanism that has one, continued twice."""

    def attend(mechanism: Any, **given: Any) -> list[Tensor]:
        k = given["k"]
        v = given["v"]
        state = rg.RecurrentState(mechanism, len(v), v.shape[1], k.shape[3], v.shape[3])
        return [state.attend(**given), state.attend(**given)]

    cases = {}
    for name, mechanism in MECHANISMS.items():
        if mechanism.has_state:
            tensors = tensors_of(make_call(name, dtype=torch.float32))
            call = partial(attend, mechanism)
            cases[f"RecurrentState.attend: {name}"] = TensorCall(tensors, call)
    return cases | {"RecurrentState.attend_varlen": packed_state_call()}


def packed_state_call() -> TensorCall:
    """A state of two texts, continued by one packed document each."""
    log_decay = -drawn(1, KV_HEADS, KEYS, seed=29).abs()

    def attend(**given: Any) -> Tensor:
        state = rg.RecurrentState(m.GatedDelta(), 2, KV_HEADS, DIM)
        return state.attend_varlen(**given)

    return TensorCall(
        {
            "q": drawn(KEYS, HEADS, DIM, seed=30),
            "k": drawn(KEYS, KV_HEADS, DIM, seed=31),
            "v": drawn(KEYS, KV_HEADS, DIM, seed=32),
            "cu_seqlens": numbers(0, 3, KEYS),
            "parameters.log_decay": log_decay,
            "parameters.strength": drawn(1, KV_HEADS, KEYS, seed=33).sigmoid(),
        },
        attend,
    )


def tensors_of(example: MechanismExample) -> dict[str, Tensor]:
    """q, k, v and "parameters.NAME"."""
    tensors = {"q": example.q, "k": example.k, "v": example.v}
    for name, x in (example.parameters or {}).items():
        tensors[f"parameters.{name}"] = x
    return tensors


METHODS = ("project", "project_keys", "lift", "gates", "constant_log_decay", "bucket")
METHODS_OF_MECHANISM = ("unit", "projections")


def mechanism_calls() -> dict[str, TensorCall]:
    """`attention` of every mechanism, and every method of mechanisms that takes the tensors of a call."""

    def attend(mechanism: Any, **given: Any) -> Tensor:
        if mechanism.shares_keys:
            given["q"] = given["k"]
        pattern = "full" if mechanism.own_key_dim or "linformer" in str(mechanism) else "causal"
        return rg.attention(**given, pattern=pattern, mechanism=mechanism)

    cases = {}
    for name, mechanism in MECHANISMS.items():
        tensors = tensors_of(make_call(name, dtype=torch.float32))
        cases[f"attention: {name}"] = TensorCall(tensors, partial(attend, mechanism))
        known = {**tensors, "keys": tensors["k"], "scale": 0.4}
        functions = [getattr(mechanism, method, None) for method in METHODS + METHODS_OF_MECHANISM]
        functions += [
            getattr(getattr(mechanism, "score", None), method, None) for method in METHODS
        ]
        for function in functions:
            if function is not None:
                cases |= of_method(name, function, known)
    return cases


def of_method(
    name: str, function: Callable[..., Any], known: dict[str, Any]
) -> dict[str, TensorCall]:
    """A method with the arguments that its signature names."""
    if function.__name__ == "constant_log_decay" and function(known["v"]) is None:
        return {}
    takes = inspect.signature(function).parameters
    tensors = {}
    rest = {}
    for argument, value in known.items():
        if argument.partition(".")[0] in takes:
            group = tensors if isinstance(value, Tensor) else rest
            group[argument] = value
    if "parameters" in takes and not any(name.startswith("parameters.") for name in tensors):
        rest["parameters"] = {}

    def call(**given: Any) -> Any:
        return function(**given, **rest)

    return {f"{function.__qualname__}: {name}": TensorCall(tensors, call)}


def pattern_calls() -> dict[str, TensorCall]:
    """`allows`, `dense` and `count` of every pattern."""
    chosen = numbers(0, 3, 2, -1, 1, 6, 5, 2, 0, 4).view(1, 1, ROWS, 2)
    ids = numbers(0, 0, 1, 1, 1, 2, 2)
    parents = numbers(-1, 0, 0, 1, 2)
    mask = drawn(ROWS, KEYS, seed=7) > 0
    patterns: dict[str, p.Pattern] = {
        "Full": p.Full(),
        "Causal": p.Causal(),
        "SlidingWindow": p.SlidingWindow(4),
        "CausalWindow": p.CausalWindow(3),
        "DilatedWindow": p.DilatedWindow(3, 2),
        "GlobalTokens": p.GlobalTokens([0, 4]),
        "RandomBlocks": p.RandomBlocks(2, 2, seed=1),
        "Strided": p.Strided(3),
        "Fixed": p.Fixed(3),
        "Prefix": p.Prefix(3),
        "Neighbourhood": p.Neighbourhood((2, 4), (1, 3)),
        "ImageWindows": p.ImageWindows((2, 4), (1, 3), shift=(0, 1)),
        "SameDocument": p.SameDocument(ids),
        "KeySpan": p.KeySpan(1, 5),
        "KeyMask": p.KeyMask(ids > 0),
        "ChosenKeys": p.ChosenKeys(chosen),
        "ChosenBlocks": p.ChosenBlocks(chosen, 1, 1),
        "Compressed": p.Compressed(3, 2),
        "Tree": p.Tree(parents),
        "PerHead": p.PerHead([p.Causal(), p.Full()]),
        "Explicit": p.Explicit(mask),
        "Where": p.Where(lambda q_pos, k_pos: (q_pos * k_pos) % 3 == 0),
        "Both": p.Causal() & p.KeySpan(1, 5),
        "Either": p.Causal() | p.KeySpan(1, 5),
        "Not": ~p.Causal(),
        "Diagonals": Diagonals(2, 1),
        "Lattice": Lattice(3),
        "SameBlock": p.SameBlock(3),
        "Summary": Summary(3, 1),
        "KeySet": KeySet((range(1, 3), range(5, 6))),
        "QuerySet": QuerySet((range(1, 3),)),
    }
    cases = {}
    places = {"q_pos": torch.arange(2, 2 + ROWS)[:, None], "k_pos": torch.arange(KEYS)[None]}
    q_start = {"q_start": numbers(2, 0, 1)}
    for name, pattern in patterns.items():
        cases[f"{pattern.allows.__qualname__}: {name}"] = TensorCall(places, pattern.allows)
        for function in (pattern.dense, pattern.count):
            call = partial(function, ROWS, KEYS)
            cases[f"{function.__qualname__}: {name}"] = TensorCall(q_start, call)
    return cases | {
        "ChosenKeys": TensorCall({"keys": chosen}, p.ChosenKeys),
        "ChosenBlocks": TensorCall({"blocks": chosen}, lambda blocks: p.ChosenBlocks(blocks, 1, 1)),
        "SameDocument": TensorCall({"ids": ids}, p.SameDocument),
        "KeySpan": TensorCall({"start": numbers(0, 1, 2), "stop": numbers(5, 7, 3)}, p.KeySpan),
        "KeyMask": TensorCall({"mask": ids > 0}, p.KeyMask),
        "Tree": TensorCall({"parents": parents}, lambda parents: p.Tree(parents) & p.Full()),
        "Explicit": TensorCall({"mask": mask}, p.Explicit),
        "SameBlock": TensorCall(
            {"offset": numbers(0, 1, 2)}, lambda offset: p.SameBlock(3, offset)
        ),
        "Pattern.allows": TensorCall(places, p.Causal().allows),
    }


def layer_calls() -> dict[str, TensorCall]:
    torch.manual_seed(11)
    dim = HEADS * DIM
    x = drawn(BATCH, KEYS, dim, seed=8)
    context = drawn(BATCH, ROWS, dim, seed=9)
    plain = rg.MultiHeadAttention(dim, HEADS, kv_heads=KV_HEADS, pattern="causal").eval()
    crossing = rg.MultiHeadAttention(dim, HEADS, kv_heads=KV_HEADS, output_gate=True).eval()
    turning = rg.MultiHeadAttention(dim, HEADS, pattern="causal", positions="rotary").eval()
    mixing = rg.MultiHeadAttention(
        dim, HEADS, pattern="causal", value_residual=ValueResidual()
    ).eval()
    latent = LatentAttention(
        dim, HEADS, latent_dim=8, rope_dim=4, head_dim=6, pattern="causal"
    ).eval()
    choosers = {
        "moba": MoBA(2, 2),
        "nsa": NSA(length=2, stride=1, block=2, top=3, window=3),
        "indexer": LightningIndexer(3, heads=2, head_dim=4),
    }
    cases = {}
    for name, chooser in choosers.items():
        layer = rg.MultiHeadAttention(
            dim, HEADS, kv_heads=KV_HEADS, pattern="causal", chooser=chooser
        ).eval()
        cases[f"MultiHeadAttention.forward: {name}"] = TensorCall({"x": x}, layer)
        cases |= chooser_calls(name, layer.chooser, layer, x)
        if name == "indexer":
            cases["MultiHeadAttention.choice_loss"] = TensorCall({"x": x}, layer.choice_loss)
            placed = rg.MultiHeadAttention(
                dim,
                HEADS,
                pattern="causal",
                positions="rotary",
                chooser=LightningIndexer(3, heads=2, head_dim=4),
            ).eval()
            cases["MultiHeadAttention.choice_loss: places"] = TensorCall(
                {"positions": numbers(0, 1, 3, 4, 5, 9, 8)},
                lambda positions, placed=placed: placed.choice_loss(x, positions=positions),
            )
    values = mixing.values(x).detach() + drawn(*mixing.values(x).shape, seed=10)
    projected = crossing.project_context(context)
    gate = drawn(*projected.keys.shape[:3], seed=13)

    def crossed(keys: Tensor, values: Tensor) -> Any:
        return crossing(x, ProjectedContext(keys, values))

    hidden = drawn(BATCH, ROWS, seed=14) > 0.5
    feed = FeedForward(dim, 9).eval()
    linear = Projection(dim, 5).eval()
    return cases | {
        "MultiHeadAttention.forward": TensorCall(
            {
                "x": x,
                "bias": drawn(HEADS, KEYS, KEYS, seed=5),
                "q_start": numbers(2, 0, 1),
            },
            plain,
        ),
        "MultiHeadAttention.forward: a context": TensorCall({"x": x, "context": context}, crossing),
        "MultiHeadAttention.forward: places": TensorCall(
            {"x": x, "positions": numbers(0, 1, 3, 4, 5, 9, 8)}, turning
        ),
        "MultiHeadAttention.forward: first values": TensorCall(
            {"x": x, "first_values": values}, mixing
        ),
        "MultiHeadAttention.forward: forgetting": TensorCall(
            {"x": x}, rg.MultiHeadAttention(dim, HEADS, pattern="causal", forgetting=True).eval()
        ),
        "MultiHeadAttention.values": TensorCall({"x": x}, plain.values),
        "MultiHeadAttention.project_context": TensorCall(
            {"context": context}, lambda context: vars(crossing.project_context(context))
        ),
        "ProjectedContext": TensorCall(
            {"keys": projected.keys.detach(), "values": projected.values.detach()}, crossed
        ),
        "ProjectedContext: gate": TensorCall(
            {"gate": gate},
            lambda gate: vars(ProjectedContext(projected.keys, projected.values, gate)),
        ),
        "ProjectedContext.reorder": TensorCall(
            {"index": numbers(2, 0, 0)}, lambda index: vars(projected.reorder(index))
        ),
        "ProjectedContext.without": TensorCall(
            {"hidden": hidden}, lambda hidden: vars(projected.without(hidden))
        ),
        "LatentAttention.forward": TensorCall(
            {"x": x, "bias": drawn(HEADS, KEYS, KEYS, seed=5), "q_start": numbers(2, 0, 1)}, latent
        ),
        "FeedForward.forward": TensorCall({"x": x}, feed),
        "Projection.forward": TensorCall({"input": x}, linear),
        "project": TensorCall(
            {"x": x, "weight": drawn(5, dim, seed=15), "bias": drawn(5, seed=16)}, project
        ),
    }


def chooser_calls(name: str, chooser: Any, layer: Any, x: Tensor) -> dict[str, TensorCall]:
    """The methods of a chooser, with the tensors that its layer gives them."""
    q, k, v = (drawn(BATCH, n, KEYS, DIM, seed=17 + n) for n in (HEADS, KV_HEADS, KV_HEADS))

    entries = {"k": k, "v": v}
    if name == "nsa":  # of three branches
        entries = {kind: torch.cat([y, y + 0.1, y - 0.2], 1) for kind, y in entries.items()}
    if name == "indexer":
        entries["k"] = chooser.cached_keys(x, k, 0).detach()

    def attend(q: Tensor, k: Tensor, v: Tensor, pattern: Any) -> Tensor:
        return rg.attention(q, k, v, pattern=pattern)

    def forward(**given: Tensor) -> Any:
        return chooser(attend, **given, pattern=p.Causal())

    cases = {
        f"{type(chooser).forward.__qualname__}: {name}": TensorCall(
            {"x": x, "q": q, **entries}, forward
        ),
        f"{type(chooser).cached_keys.__qualname__}: {name}": TensorCall(
            {"x": x, "k": k}, lambda x, k: chooser.cached_keys(x, k, 0)
        ),
    }
    choose = type(chooser).choose.__qualname__
    if name == "moba":
        cases[choose] = TensorCall({"q": q, "k": k}, lambda q, k: chooser.choose(q, k).blocks)
    if name == "indexer":
        cases["LightningIndexer.loss"] = TensorCall(
            {"x": x, "q": q, "k": k}, lambda x, q, k: chooser.loss(x, q, k, p.Causal())
        )
        keys = drawn(BATCH, 1, KEYS, 4, seed=22)
        cases[choose] = TensorCall(
            {"x": x, "keys": keys}, lambda x, keys: chooser.choose(x, keys).keys
        )
    if name == "nsa":
        compressed = drawn(BATCH, KV_HEADS, KEYS - 1, DIM, seed=23)
        cases[choose] = TensorCall(
            {"q": q, "compressed": compressed},
            lambda q, compressed: chooser.choose(q, compressed, KEYS).blocks,
        )
    return cases


def cache_calls() -> dict[str, TensorCall]:
    tensors = {name: queries()[name] for name in "kv"}
    gates = -drawn(BATCH, HEADS, KEYS, seed=24).abs()
    cases = {}
    for kind in ("dynamic", "static", "ring", "paged"):
        for dtype in ("float32", "bfloat16", "int8"):
            cases[f"Cache.append: {kind} {dtype}"] = TensorCall(tensors, appended(kind, dtype))
        reorder = type(cache_of(kind)).reorder.__qualname__
        cases[f"{reorder}: {kind}"] = TensorCall(
            {"index": numbers(2, 0, 0)}, after(kind, "reorder")
        )
        gated = type(cache_of(kind)).append_gated.__qualname__

        def append_gated(kind: str = kind, **given: Tensor) -> Any:
            cache = cache_of(kind, forgetting=HEADS // KV_HEADS)
            k, v, forgetting = cache.append_gated(**given)
            assert forgetting is not None
            q = queries(KEYS)["q"]
            return [k, v, rg.attention(q, k, v, bias=forgetting, pattern="causal")]

        cases[f"{gated}: {kind}"] = TensorCall({**tensors, "log_forget": gates}, append_gated)
        if kind != "ring":
            cases[f"Cache.keep: {kind}"] = TensorCall(
                {"indices": numbers(0, 2, 5)}, after(kind, "keep")
            )
    index = numbers(2, 0, 0)
    received = drawn(BATCH, HEADS, KEYS + 2, seed=25).abs()
    places = numbers(0, 1, 2, 4, 6, 7, 8).view(1, 1, KEYS)

    def reordered(index: Tensor) -> Tensor:
        state = rg.RecurrentState(m.LinearTransformer(), BATCH, KV_HEADS, DIM)
        q, k, v = queries(KEYS).values()
        state.attend(q, k, v)
        state.reorder(index)
        return state.attend(q, k, v)

    return cases | {
        "RecurrentState.reorder": TensorCall({"index": index}, reordered),
        "heavy_hitters": TensorCall(
            {"received": received, "positions": places},
            lambda received, positions: c.heavy_hitters(
                received, 3, kv_heads=KV_HEADS, positions=positions
            ),
        ),
        "observed_keys": TensorCall(
            {"received": received, "positions": places},
            lambda received, positions: c.observed_keys(
                received, 3, kv_heads=KV_HEADS, window=2, pool=3, positions=positions
            ),
        ),
    }


def other_calls() -> dict[str, TensorCall]:
    """Biases, positions, and calls over one process."""
    distances = torch.arange(-KEYS, KEYS)
    gates = -drawn(BATCH, HEADS, KEYS, seed=24).abs()
    qkv = queries(KEYS)
    t5 = b.T5Relative(HEADS)
    grid = b.GridRelative(HEADS, (2, 4), 1)
    for learned in (t5, grid):
        for weight in learned.parameters():
            torch.nn.init.normal_(weight, generator=torch.Generator().manual_seed(26))
    table = at.Learned(11, DIM)
    rotary = at.Rotary()
    places = numbers(0, 1, 3, 4, 5, 9, 8)
    cells = torch.arange(-5, 6)

    def forgotten(log_forget: Tensor) -> Tensor:
        return rg.attention(**qkv, bias=b.Forgetting(log_forget), pattern="causal")

    def of_sums(sums: Tensor, zero: Tensor) -> Tensor:
        return rg.attention(
            **qkv, bias=b.Forgetting.of_sums(sums, zero, sums.device), pattern="causal"
        )

    return {
        "ALiBi.by_distance": TensorCall(
            {"distances": distances}, lambda distances: b.ALiBi().by_distance(distances, HEADS)
        ),
        "Bias.by_distance": TensorCall(
            {"distances": distances}, lambda distances: b.ALiBi().by_distance(distances, HEADS)
        ),
        "T5Relative.by_distance": TensorCall(
            {"distances": distances}, lambda distances: t5.by_distance(distances, HEADS)
        ),
        "T5Relative.bucket": TensorCall({"distances": distances}, t5.bucket),
        "GridRelative.by_distance": TensorCall(
            {"distances": cells}, lambda distances: grid.by_distance(distances, HEADS)
        ),
        "GridRelative.offsets": TensorCall({"distances": cells}, grid.offsets),
        "OnGrid.coordinates": TensorCall(
            {"positions": cells}, p.Neighbourhood((2, 4), (1, 3)).coordinates
        ),
        "Forgetting": TensorCall({"log_forget": gates}, forgotten),
        "Forgetting.of_sums": TensorCall(
            {"sums": gates.double().cumsum(-1), "zero": drawn(BATCH, HEADS, 1, seed=27).double()},
            of_sums,
        ),
        "Rotary.rotate": TensorCall({"x": qkv["k"], "positions": places}, rotary.rotate),
        "Rotary.rotate_from": TensorCall({"x": qkv["k"]}, lambda x: rotary.rotate_from(x, 3)),
        "Learned.forward": TensorCall({"positions": places}, table),
        "Learned.check": TensorCall(
            {"positions": places}, lambda positions: [table.check(positions)] and 1
        ),
        "Sinusoidal.forward": TensorCall({"positions": places}, at.Sinusoidal(DIM)),
        "LSH.own_keys": TensorCall(
            {"q": qkv["k"], "k": qkv["k"], "visible": torch.ones(BATCH, KEYS, dtype=torch.bool)},
            lambda q, k, visible: m.LSH(3, 4, 2).own_keys(q, k, Grid.whole(KEYS, KEYS), visible),
        ),
        "weights_of": TensorCall(
            {"rows": numbers(0, 3), "heads": numbers(1, 2)},
            lambda rows, heads: (
                rg.attention_detail(**qkv, want=rg.weights_of(rows, heads)).chosen_weights
            ),
        ),
        "GlobalTokens": TensorCall({"indices": numbers(0, 4)}, p.GlobalTokens),
    }


def distributed_calls() -> dict[str, TensorCall]:
    """Calls over a group of one process, which the caller has made."""
    from regard import distributed as d

    group = torch.distributed.group.WORLD
    qkv = queries(KEYS)
    layout = d.Layout("zigzag", (4, 3))
    x = drawn(BATCH, HEADS, KEYS, DIM, seed=35)
    others = d.shard(x, layout, 1)
    options: dict[str, Any] = {"mesh": group, "pattern": "causal"}

    def unshard(parts: dict[str, Tensor]) -> Tensor:
        return d.unshard([parts["first"], others], layout)

    return {
        "distributed.attention": TensorCall(qkv, lambda **given: d.attention(**given, **options)),
        "distributed.attention: ring": TensorCall(
            qkv, lambda **given: d.attention(**given, **options, form="ring", layout="zigzag")
        ),
        "distributed.attention: state": TensorCall(
            qkv,
            lambda **given: d.attention(
                **given, **options, form="state", mechanism="linear_transformer"
            ),
        ),
        "distributed.attention_detail": TensorCall(
            qkv, lambda **given: d.attention_detail(**given, **options).log_sum_exp
        ),
        "distributed.shard": TensorCall({"x": x}, lambda x: d.shard(x, layout, 0)),
        "distributed.unshard": TensorCall({"parts.first": d.shard(x, layout, 0)}, unshard),
    }


def calls() -> dict[str, TensorCall]:
    """Every case by the qualified name of what it calls, and a word after a colon."""
    varied = {
        "q": drawn(8, HEADS, DIM, seed=2),
        "k": drawn(9, KV_HEADS, DIM, seed=3),
        "v": drawn(9, KV_HEADS, DIM, seed=4),
        "cu_seqlens_q": numbers(0, 3, 8),
        "cu_seqlens_k": numbers(0, 4, 9),
        "sink": drawn(HEADS, seed=6),
    }
    detail = {"want": ("log_sum_exp", "entropy")}
    pieces = {
        "pieces.output": drawn(BATCH, HEADS, ROWS, DIM, seed=31),
        "pieces.lse": drawn(BATCH, HEADS, ROWS, seed=32),
    }

    def merged(pieces: dict[str, Tensor]) -> Any:
        first = (pieces["output"], pieces["lse"])
        second = (drawn(BATCH, HEADS, ROWS, DIM, seed=33), drawn(BATCH, HEADS, ROWS, seed=34))
        return rg.merge_attention([first, second])

    example = make_call("general", dtype=torch.float32)
    learned = tensors_of(example)
    general = {"mechanism": example.mechanism}

    def of_plan(method: str, **want: Any) -> Callable[..., Any]:
        def call(q: Tensor, k: Tensor, v: Tensor, parameters: Any) -> Any:
            plan = rg.plan_attention(q, k, v, parameters=parameters, **general, **want)
            return getattr(plan, method)(q, k, v, parameters=parameters)

        return call

    return {
        "attention": TensorCall(OPTIONS, of_causal(rg.attention)),
        "attention_detail": TensorCall(
            OPTIONS, lambda **given: rg.attention_detail(**given, **detail, pattern="causal")
        ),
        "plan_attention": TensorCall(
            queries(), lambda **given: float(len(rg.plan_attention(**given).backend))
        ),
        "attention_detail: parameters": TensorCall(
            learned, lambda **given: rg.attention_detail(**given, **general, **detail)
        ),
        "Plan.run: parameters": TensorCall(learned, of_plan("run")),
        "Plan.detail: parameters": TensorCall(learned, of_plan("detail", **detail)),
        "Plan.run": TensorCall(OPTIONS, planned("run")),
        "Plan.detail": TensorCall(OPTIONS, planned("detail", **detail)),
        "attention_varlen": TensorCall(varied, varlen),
        "merge_attention": TensorCall(pieces, merged),
        **mechanism_calls(),
        **state_calls(),
        **pattern_calls(),
        **layer_calls(),
        **cache_calls(),
        **other_calls(),
    }


def public_arguments() -> dict[str, str]:
    """Every argument of a public call that takes a tensor, as "call(argument)", with its annotation."""
    arguments: dict[str, str] = {}
    for package in PACKAGES:
        module = importlib.import_module(package)
        prefix = "distributed." if package == "regard.distributed" else ""
        for name in module.__all__:
            public = getattr(module, name)
            if inspect.isclass(public) and not issubclass(public, BaseException):
                arguments |= tensor_arguments(public.__qualname__, public.__init__)
                for method in methods(public):
                    arguments |= tensor_arguments(method.__qualname__, method)
            elif inspect.isfunction(public):
                arguments |= tensor_arguments(f"{prefix}{public.__qualname__}", public)
    return arguments


def methods(public: type) -> Iterator[Callable[..., Any]]:
    """The methods of a class that it or its bases in regard define."""
    for name in dir(public):
        member = inspect.getattr_static(public, name)
        method = getattr(member, "__func__", member)
        if name.startswith("_") or not inspect.isfunction(method):
            continue
        if method.__module__.startswith("regard"):
            yield method


def tensor_arguments(name: str, function: Any) -> dict[str, str]:
    arguments = {}
    if inspect.isfunction(function):
        for argument in inspect.signature(function).parameters.values():
            annotation = str(argument.annotation)
            if any(word in annotation for word in TAKES_TENSORS):
                arguments[f"{name}({argument.name})"] = annotation
    return arguments


# Arguments that no caller gives a tensor of numbers to, each with the reason.
WITHOUT_NUMBERS = {
    "TensorPattern.hold(tensor)": "a pattern holds what it has checked: a case of each pattern that has a tensor",
    "LinearTransformer.lift(parameters)": "it has none",
    "Performer.lift(parameters)": "it has none",
    "Recurrent.constant_log_decay(v)": "it returns None; its classes compute",
    **{f"Chooser.forward({name})": "it raises; its classes compute" for name in "xqkv"},
    **{f"Chooser.loss({name})": "it raises; LightningIndexer computes" for name in "xqk"},
}
