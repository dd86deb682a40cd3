"""Calls of the other mechanisms: linear attention, random features, Linformer and LSH, against their formulas."""

import random
import traceback
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

import regard as rg
from regard import mechanisms as m
from regard.backends.native.library import load
from regard.layers.caches import RecurrentState
from regard.mechanisms.draws import directions

from .cases import DTYPES, described, start_of
from .found import TESTS, module_of
from .judging import SECOND, Verdict, share_of
from .meanings import FULL, Node, Places, build, mask_of, plain_leaf
from .mechanism_formulas import CORRECTING, FOUND, KERNELS, RECURRENT, Tensors, expected
from .oracle import detached, differentiated, named

KINDS = (
    "linear",
    "linear",
    "relu",
    "performer",
    "performer",
    "features",
    "gated",
    "linformer",
    "lsh",
    *RECURRENT,
    *FOUND,
)
LOOPS = module_of(TESTS / "mechanisms" / "lsh_by_loops.py")
# the backend beside the reference; "linear" for the others
FAST = {
    "linformer": "linformer",
    "lsh": "lsh",
}


@dataclass(frozen=True)
class Case:
    """A call of one of KINDS; `seed` decides its numbers."""

    seed: int
    kind: str = "linear"
    batch: int = 1
    heads: int = 1
    kv_heads: int = 1
    q_len: int = 5
    k_len: int = 5
    head_dim: int = 4
    v_dim: int = 4
    dtype: str = "float64"
    pattern: Node = FULL
    features: int = 8
    scale: float | None = None
    q_start: int | tuple[int, ...] | None = None
    learners: tuple[str, ...] = ()
    second: bool = False
    value_group: int = (
        1  # value heads that share a query and a key head; heads and kv_heads are those of v
    )
    chunks: int = 0  # the length of chunks by which a state continues the text; 0: computed at once

    @property
    def places(self) -> Places:
        return Places(self.batch, self.heads, self.q_len, self.k_len, start_of(self))

    def __str__(self) -> str:
        return f"mechanisms.{described(self, Case(0))}"


def draw_mechanism(seed: int) -> Case:
    """The call that this number stands for."""
    r = random.Random(f"mechanism {seed}")
    kind = r.choice(KINDS)
    kv_heads = r.choice((1, 2, 3))
    group = 1 if kind == "lsh" else r.choice((1, 2))
    value_group = r.choice((1, 2)) if kind in RECURRENT and group == 1 else 1
    kv_heads *= value_group
    k_len = (
        r.choice((1, 2, 3, 5, 8, 13, 19, 31))
        if r.random() < 0.95 or kind == "lsh"
        else r.choice((67, 130, 200))
    )
    k_len = min(k_len, 67) if kind in RECURRENT else k_len  # the formula has a memory for each row
    q_len = k_len if r.random() < 0.5 else r.randint(1, k_len if kind == "lsh" else k_len + 5)
    batch = r.choice((1, 2, 3))
    causal = kind == "gated" or kind in RECURRENT or (kind != "linformer" and r.random() < 0.5)
    leaves = [Node("causal")] if causal else []
    if r.random() < 0.5:
        masks = ("key_mask", "masks_by_row") if kind in RECURRENT else ()
        leaves.append(plain_leaf(r, r.choice(("key_span", "spans_by_row", *masks)), k_len))
    if kind not in ("linformer", "lsh") and r.random() < 0.3:
        leaves.append(
            plain_leaf(r, r.choice(("same_document", "documents_by_row")), max(q_len, k_len))
        )
    pattern = (
        Node("full")
        if not leaves
        else leaves[0]
        if len(leaves) == 1
        else Node("and", (), tuple(leaves))
    )
    scales: dict[str, tuple[Any, ...]] = {
        "performer": (None, 0.3),
        "linformer": (None, 0.7, 0, -0.5),
        "lsh": (None, 0.7),
        **dict.fromkeys(RECURRENT, (None, 0.7, -1.5)),
    }
    learned = ("q", "k", "v", "gate", "log_decay", "strength", "key_projection", "value_projection")
    learning = r.random() < 0.6
    case = Case(
        seed,
        kind,
        batch,
        kv_heads * group,
        kv_heads,
        q_len,
        k_len,
        r.choice((1, 2, 5, 8)),
        r.choice((1, 3, 7)),
        r.choice(DTYPES[:2] + DTYPES),
        pattern,
        r.choice((2, 5, 16)),
        r.choice(scales.get(kind, (None,))),
        None if kind in ("lsh", "gated") or r.random() < 0.6 else r.randint(-3, k_len + 3),
        tuple(x for x in learned if r.random() < 0.8) if learning else (),
        r.random() < 0.4,
        value_group,
    )
    continued = (
        kind not in FAST
        and "causal" in pattern.leaves()
        and not pattern.leaves() & {"same_document", "documents_by_row"}
    )
    if continued and r.random() < 0.4:
        wide = case.dtype if case.dtype in DTYPES[:2] else "float32"
        return replace(
            case,
            q_len=k_len,
            q_start=None,
            chunks=r.choice((1, 2, 3, 7)),
            dtype=wide,
            learners=(),
            second=False,
        )
    return case


class Made:
    """What a case is called with."""

    def __init__(self, case: Case) -> None:
        self.case, self.at = case, case.places
        self.dtype = getattr(torch, case.dtype)
        self.mask = torch.from_numpy(mask_of(case.pattern, self.at).copy())
        drawn = torch.Generator().manual_seed(case.seed % 2**63)
        normal = lambda *shape: torch.randn(shape, generator=drawn, dtype=torch.float64)  # noqa: E731
        k = normal(case.batch, case.kv_heads // case.value_group, case.k_len, case.head_dim)
        k = torch.nn.functional.normalize(k, dim=-1) if case.kind in CORRECTING else k
        self.given = {
            "q": normal(case.batch, case.heads // case.value_group, case.q_len, case.head_dim),
            "k": k,
            "v": normal(case.batch, case.kv_heads, case.k_len, case.v_dim),
        }
        if case.kind == "gated":
            self.given["gate"] = normal(case.batch, case.kv_heads, case.k_len).sigmoid()
        if case.kind in RECURRENT:
            self.given |= self._gates(normal)
        if case.kind == "linformer":
            for name in ("key_projection", "value_projection"):
                self.given[name] = normal(case.kv_heads, 3, case.k_len + 2) * case.k_len**-0.5
        if case.kind == "lsh":  # queries are the last keys
            self.given.pop("q")
        seen = (
            self.mask.any(2).view(case.batch, case.kv_heads, -1, case.k_len) if case.k_len else None
        )
        self.hidden = torch.zeros(1, 1, 1, 1, dtype=torch.bool)
        if seen is not None and case.kind != "lsh":  # there, a hidden key is a query too
            self.hidden = ~seen.any(2)[..., None]
            # alike for all heads
            self.hidden = self.hidden[:, :1] if case.value_group > 1 else self.hidden
        self.given = {name: x.to(self.dtype) for name, x in self.given.items()}
        self.learners = tuple(x for x in case.learners if x in self.given)
        self.grad_output = normal(case.batch, case.heads, case.q_len, case.v_dim).to(self.dtype)
        self.directions = {name: normal(*x.shape).to(self.dtype) for name, x in self.given.items()}
        if case.kind == "linformer":
            self.mechanism: Any = m.Linformer(case.k_len + 2, 3)
        elif case.kind == "lsh":
            self.mechanism = m.LSH(chunk=3, buckets=4, rounds=2, seed=case.seed % 5)
        elif case.kind in RECURRENT:
            self.mechanism = RECURRENT[case.kind]
        else:
            self.mechanism = KERNELS[case.kind].declare(case)
        self.scale = case.head_dim**-0.5 if case.scale is None else case.scale
        if case.kind == "lsh":
            self.seen = self._seen()

    def _gates(self, normal: Any) -> Tensors:
        """What this kind takes of log_decay and strength; decays of 0, of 1 and far below float32's range occur."""
        case, by_key = self.case, (self.case.batch, self.case.kv_heads, self.case.k_len)
        shapes = {"log_decay": by_key, "strength": by_key}
        if case.kind in ("gated_linear", "kimi_delta"):
            shapes["log_decay"] = (*by_key, case.head_dim)
        takes = {
            "ssd": shapes,
            "gated_linear": ("log_decay",),
            "delta_rule": ("strength",),
            "gated_delta": shapes,
            "kimi_delta": shapes,
            "retention": ("log_decay",),
            "lightning": ("log_decay",),
        }[case.kind]
        optional = {"ssd": "strength", "retention": "log_decay", "lightning": "log_decay"}.get(
            case.kind
        )
        given = {}
        for name in [one for one in takes if one != optional or case.seed % 3]:
            x = normal(*shapes[name])
            given[name] = (
                x.sigmoid() if name == "strength" else -x.abs() * (0.01, 0.3, 2.0)[case.seed % 3]
            )
            if name == "log_decay" and case.seed % 4 == 0:
                extreme = torch.tensor([0.0, -1e6, -torch.inf])[
                    (normal(*x.shape).abs() * 3).long() % 3
                ].double()
                given[name] = torch.where(normal(*x.shape) > 0.8, extreme, given[name])
        return given

    def _seen(self) -> torch.Tensor:
        """Which keys each position sees among those that are not hidden, by the loops of tests/regard/mechanisms."""
        case, mechanism = self.case, self.mechanism
        like = torch.empty(0, dtype=torch.float64)
        every = directions(mechanism.seed, mechanism.rounds * 2, case.head_dim, False, like)
        rotations = [one.T.numpy() for one in every.split(2)]
        # (batch, heads, k_len): causal hides no key from all but those of the span
        alive = self.mask.any(2)
        span = [
            one
            for one in (case.pattern.parts or (case.pattern,))
            if one.kind in ("key_span", "spans_by_row")
        ]
        alive = (
            torch.from_numpy(mask_of(span[0], self.at)[:, :, 0].copy())
            if span
            else torch.ones_like(alive)
        )
        found = torch.zeros(case.batch, case.heads, case.k_len, case.k_len, dtype=torch.bool)
        causal = "causal" in case.pattern.leaves()
        for b, h in np.ndindex(case.batch, case.heads):
            sees = LOOPS.seen(
                self.given["k"][b, h].double().numpy(), rotations, 3, causal, alive[b, h].tolist()
            )
            for i, js in enumerate(sees):
                found[b, h, i, sorted(js)] = True
        return found[:, :, case.k_len - case.q_len :]

    def clean(self) -> Tensors:
        """What is given, in float64; zeros for keys and values that no query may see."""
        return {
            name: x.double().masked_fill(self.hidden, 0)
            if name in ("k", "v")
            else x.double().clone()
            for name, x in self.given.items()
        }

    def poisoned(self) -> Tensors:
        """What is given, with NaN in keys and values that no query may see."""
        return {
            name: x.masked_fill(self.hidden, torch.nan) if name in ("k", "v") else x.clone()
            for name, x in self.given.items()
        }

    def parameters(self, leaves: Tensors) -> Tensors | None:
        return {name: x for name, x in leaves.items() if name not in ("q", "k", "v")} or None

    def pattern(self) -> Any:
        return build(self.case.pattern, self.at)


def judge_mechanism(case: Case) -> list[Verdict]:
    """The verdict on every backend that computes the mechanism."""
    made = Made(case)
    names = ("state",) if case.chunks else ("auto", "reference", FAST.get(case.kind, "linear"))
    if case.kind not in FAST and not case.chunks and not isinstance(load(), str):
        names = (*names, "native")
    known: dict[bool, tuple[Tensors, Tensors]] = {}
    verdicts = []
    for backend in names:
        second = case.second and bool(made.learners) and (SECOND is None or backend in SECOND)
        if second not in known:
            known[second] = expected(made, second)
        verdicts.append(_verdict(made, backend, second, *known[second]))
    return verdicts


def _verdict(made: Made, backend: str, second: bool, expected: Tensors, errors: Tensors) -> Verdict:
    name = f"{made.case.kind} {backend}"
    try:
        found = _continued(made) if backend == "state" else _compute(made, backend, second)
    except rg.UnsupportedError as refusal:
        return Verdict(name, "off" if backend in ("auto", "reference") else "refused", str(refusal))
    except Exception:
        return Verdict(name, "off", "raised " + traceback.format_exc(limit=-4))
    told = [share_of(one, x, expected[one], errors[one], made.dtype) for one, x in found.items()]
    wrong = [reason for reason, share in told if share > 1]
    return Verdict(
        name, "off" if wrong else "right", "; ".join(wrong), max(share for _, share in told)
    )


def _compute(made: Made, backend: str, second: bool) -> Tensors:
    case = made.case
    leaves = {name: x.requires_grad_(name in made.learners) for name, x in made.poisoned().items()}
    k = leaves["k"]
    q = (
        leaves["q"]
        if "q" in leaves
        else k
        if case.q_len == case.k_len
        else k[:, :, case.k_len - case.q_len :]
    )
    start = torch.tensor(made.at.start) if isinstance(case.q_start, tuple) else case.q_start
    options = {
        "pattern": made.pattern(),
        "mechanism": made.mechanism,
        "parameters": made.parameters(leaves),
    }
    if case.scale is not None:
        options["scale"] = case.scale
    with torch.set_grad_enabled(bool(made.learners)):
        output = rg.attention(q, k, leaves["v"], q_start=start, backend=backend, **options)
    found = {"output": output}
    if made.learners:
        learning = {name: leaves[name] for name in made.learners}
        # see judging.py
        come = made.grad_output.clone().requires_grad_(second and case.seed % 20 < 10)
        along = made.directions if second else None
        found |= named(*differentiated(found, learning, {"output": come}, along))
    return detached(found)


def _continued(made: Made) -> Tensors:
    """The text in chunks, by a state of constant size."""
    case = made.case
    given = made.poisoned()
    state = RecurrentState(
        made.mechanism, case.batch, case.kv_heads, case.head_dim, case.v_dim, dtype=made.dtype
    )
    outputs = []
    with torch.no_grad():
        for at in range(0, case.k_len, case.chunks):
            part = slice(at, at + case.chunks)
            q, k, v = (given[name][:, :, part] for name in ("q", "k", "v"))
            parameters = {
                name: x[:, :, part] for name, x in (made.parameters(given) or {}).items()
            } or None
            outputs.append(
                state.attend(
                    q, k, v, pattern=made.pattern(), scale=case.scale, parameters=parameters
                )
            )
    return {"output": torch.cat(outputs, 2)}
