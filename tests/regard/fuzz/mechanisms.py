"""Calls of the other mechanisms: linear attention, random features, Linformer and LSH, against their formulas."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

import regard as rg
from regard import mechanisms as m
from regard.backends.native.library import load
from regard.layers.caches import RecurrentState
from regard.mechanisms.draws import directions

from .cases import DTYPES, Placed, described, halved, with_default
from .found import TESTS, module_of
from .judging import SECOND, CaseVerdict, raised, share_of
from .meanings import FULL, Node, build, mask_of, plain_leaf
from .mechanism_formulas import CORRECTING, FOUND, KERNELS, RECURRENT, Tensors, expected
from .oracle import detached, differentiated, named
from .tensors import DrawnNumbers

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
FAST = {"linformer": "linformer", "lsh": "lsh"}  # the backend beside the reference; else "linear"
LEARNED = ("q", "k", "v", "gate", "log_decay", "strength", "key_projection", "value_projection")
PROJECTIONS = ("key_projection", "value_projection")
SCALES: dict[str, tuple[Any, ...]] = {
    "performer": (None, 0.3),
    "linformer": (None, 0.7, 0, -0.5),
    "lsh": (None, 0.7),
    **dict.fromkeys(RECURRENT, (None, 0.7, -1.5)),
}
GATES = {
    "ssd": ("log_decay", "strength"),
    "gated_linear": ("log_decay",),
    "delta_rule": ("strength",),
    "gated_delta": ("log_decay", "strength"),
    "kimi_delta": ("log_decay", "strength"),
    "retention": ("log_decay",),
    "lightning": ("log_decay",),
}
OPTIONAL_GATE = {"ssd": "strength", "retention": "log_decay", "lightning": "log_decay"}
DOCUMENTS = ("same_document", "documents_by_row")
SPANS = ("key_span", "spans_by_row")


@dataclass(frozen=True)
class MechanismCase(Placed):
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
    q_start: int | None = None
    learners: tuple[str, ...] = ()
    second: bool = False
    # Value heads that share a query and a key head; heads and kv_heads are those of v.
    value_group: int = 1
    chunks: int = 0  # the length of chunks by which a state continues the text; 0: computed at once

    def __str__(self) -> str:
        return described(self, MechanismCase(0))


def draw_mechanism(seed: int) -> MechanismCase:
    """The call that this number stands for."""
    r = random.Random(f"mechanism {seed}")
    kind = r.choice(KINDS)
    kv_heads = r.choice((1, 2, 3))
    group = 1 if kind == "lsh" else r.choice((1, 2))
    value_group = r.choice((1, 2)) if kind in RECURRENT and group == 1 else 1
    kv_heads *= value_group
    is_short = r.random() < 0.95 or kind == "lsh"
    k_len = r.choice((1, 2, 3, 5, 8, 13, 19, 31) if is_short else (67, 130, 200))
    if kind in RECURRENT:  # whose formula has a memory for each row
        k_len = min(k_len, 67)
    q_len = k_len if r.random() < 0.5 else r.randint(1, k_len if kind == "lsh" else k_len + 5)
    batch = r.choice((1, 2, 3))
    pattern = _pattern(r, kind, q_len, k_len)
    learning = r.random() < 0.6
    case = MechanismCase(
        seed,
        kind,
        batch,
        kv_heads * group,
        kv_heads,
        q_len,
        k_len,
        head_dim=r.choice((1, 2, 5, 8)),
        v_dim=r.choice((1, 3, 7)),
        dtype=r.choice(DTYPES[:2] + DTYPES),
        pattern=pattern,
        features=r.choice((2, 5, 16)),
        scale=r.choice(SCALES.get(kind, (None,))),
        q_start=None if kind in ("lsh", "gated") else _q_start(r, k_len),
        learners=tuple(name for name in LEARNED if r.random() < 0.8) if learning else (),
        second=r.random() < 0.4,
        value_group=value_group,
    )
    leaves = pattern.leaves()
    can_continue = kind not in FAST and "causal" in leaves and not leaves & set(DOCUMENTS)
    if can_continue and r.random() < 0.4:
        return replace(
            case,
            q_len=k_len,
            q_start=None,
            chunks=r.choice((1, 2, 3, 7)),
            dtype=case.dtype if case.dtype in DTYPES[:2] else "float32",
            learners=(),
            second=False,
        )
    return case


def _pattern(r: random.Random, kind: str, q_len: int, k_len: int) -> Node:
    causal = kind == "gated" or kind in RECURRENT or (kind != "linformer" and r.random() < 0.5)
    leaves = [Node("causal")] if causal else []
    if r.random() < 0.5:
        masks = ("key_mask", "masks_by_row") if kind in RECURRENT else ()
        leaves.append(plain_leaf(r, r.choice((*SPANS, *masks)), k_len))
    if kind not in ("linformer", "lsh") and r.random() < 0.3:
        leaves.append(plain_leaf(r, r.choice(DOCUMENTS), max(q_len, k_len)))
    if not leaves:
        return Node("full")
    return leaves[0] if len(leaves) == 1 else Node("and", (), tuple(leaves))


def _q_start(r: random.Random, k_len: int) -> int | None:
    return None if r.random() < 0.6 else r.randint(-3, k_len + 3)


class MechanismCall(DrawnNumbers):
    """What a case is called with."""

    def __init__(self, case: MechanismCase) -> None:
        self.case = case
        self.at = case.places
        self.dtype = getattr(torch, case.dtype)
        self.mask = torch.from_numpy(mask_of(case.pattern, self.at).copy())
        self.seed(case.seed)
        self.given = {name: x.to(self.dtype) for name, x in self._tensors().items()}
        self.hidden = self._hidden()
        self.learners = tuple(name for name in case.learners if name in self.given)
        grad_output = self.numbers(case.batch, case.heads, case.q_len, case.v_dim)
        self.grad_output = grad_output.to(self.dtype)
        self.directions = {}
        for name, x in self.given.items():
            self.directions[name] = self.numbers(*x.shape).to(self.dtype)
        self.mechanism = self._mechanism()
        self.scale = case.head_dim**-0.5 if case.scale is None else case.scale
        if case.kind == "lsh":
            self.seen = self._seen()

    def _tensors(self) -> Tensors:
        case = self.case
        by_key = (case.batch, case.kv_heads, case.k_len)
        k = self.numbers(case.batch, case.kv_heads // case.value_group, case.k_len, case.head_dim)
        if case.kind in CORRECTING:
            k = torch.nn.functional.normalize(k, dim=-1)
        q = self.numbers(case.batch, case.heads // case.value_group, case.q_len, case.head_dim)
        tensors = {"q": q, "k": k, "v": self.numbers(*by_key, case.v_dim)}
        if case.kind == "gated":
            tensors["gate"] = self.numbers(*by_key).sigmoid()
        if case.kind in RECURRENT:
            tensors |= self._gates(by_key)
        if case.kind == "linformer":
            for name in PROJECTIONS:
                numbers = self.numbers(case.kv_heads, 3, case.k_len + 2)
                tensors[name] = numbers * case.k_len**-0.5
        if case.kind == "lsh":  # queries are the last keys
            del tensors["q"]
        return tensors

    def _gates(self, by_key: tuple[int, ...]) -> Tensors:
        """What this kind takes of log_decay and strength; decays of 0, of 1 and far below float32's range occur."""
        case = self.case
        gates = {}
        for name in GATES[case.kind]:
            if name == OPTIONAL_GATE.get(case.kind) and case.seed % 3 == 0:
                continue
            if name == "strength":
                gates[name] = self.numbers(*by_key).sigmoid()
                continue
            by_dim = case.kind in ("gated_linear", "kimi_delta")
            x = self.numbers(*by_key, case.head_dim) if by_dim else self.numbers(*by_key)
            gates[name] = -x.abs() * (0.01, 0.3, 2.0)[case.seed % 3]
            if case.seed % 4 == 0:
                kinds = (self.numbers(*x.shape).abs() * 3).long() % 3
                extreme = torch.tensor([0.0, -1e6, -torch.inf])[kinds].double()
                gates[name] = torch.where(self.numbers(*x.shape) > 0.8, extreme, gates[name])
        return gates

    def _hidden(self) -> torch.Tensor:
        """Keys that no query may look at, (batch, kv_heads, k_len, 1)."""
        case = self.case
        if not case.k_len or case.kind == "lsh":  # there, a hidden key is a query too
            return torch.zeros(1, 1, 1, 1, dtype=torch.bool)
        seen = self.mask.any(2).view(case.batch, case.kv_heads, -1, case.k_len)
        hidden = ~seen.any(2)[..., None]
        return hidden[:, :1] if case.value_group > 1 else hidden  # alike for all heads

    def _mechanism(self) -> Any:
        case = self.case
        if case.kind == "linformer":
            return m.Linformer(case.k_len + 2, 3)
        if case.kind == "lsh":
            return m.LSH(chunk=3, buckets=4, rounds=2, seed=case.seed % 5)
        return RECURRENT[case.kind] if case.kind in RECURRENT else KERNELS[case.kind].declare(case)

    def _seen(self) -> torch.Tensor:
        """Which keys each position sees among those that are not hidden, by the loops of tests/regard/mechanisms."""
        case = self.case
        mechanism = self.mechanism
        like = torch.empty(0, dtype=torch.float64)
        vectors = directions(mechanism.seed, mechanism.rounds * 2, case.head_dim, False, like)
        rotations = [of_round.T.numpy() for of_round in vectors.split(2)]
        causal = "causal" in case.pattern.leaves()

        # (batch, heads, k_len): causal hides no key from all queries, so only a span does.
        visible = torch.ones(case.batch, case.heads, case.k_len, dtype=torch.bool)
        for part in case.pattern.parts or (case.pattern,):
            if part.kind in SPANS:
                visible = torch.from_numpy(mask_of(part, self.at)[:, :, 0].copy())

        seen = torch.zeros(case.batch, case.heads, case.k_len, case.k_len, dtype=torch.bool)
        for b, h in np.ndindex(case.batch, case.heads):
            keys = self.given["k"][b, h].double().numpy()
            of_positions = LOOPS.allowed_keys(keys, rotations, 3, causal, visible[b, h].tolist())
            for position, seen_keys in enumerate(of_positions):
                seen[b, h, position, sorted(seen_keys)] = True
        return seen[:, :, case.k_len - case.q_len :]

    def clean(self) -> Tensors:
        """What is given, in float64; zeros for keys and values that no query may see."""
        tensors = {name: x.double().clone() for name, x in self.given.items()}
        for name in ("k", "v"):
            tensors[name] = tensors[name].masked_fill(self.hidden, 0)
        return tensors

    def poisoned(self) -> Tensors:
        """What is given, with NaN in keys and values that no query may see."""
        tensors = {name: x.clone() for name, x in self.given.items()}
        for name in ("k", "v"):
            tensors[name] = tensors[name].masked_fill(self.hidden, torch.nan)
        return tensors

    def parameters(self, leaves: Tensors) -> Tensors | None:
        return {name: x for name, x in leaves.items() if name not in ("q", "k", "v")} or None

    def pattern(self) -> Any:
        return build(self.case.pattern, self.at)


def judge_mechanism(case: MechanismCase) -> list[CaseVerdict]:
    """The verdict on every backend that computes the mechanism."""
    call = MechanismCall(case)
    names = ("state",) if case.chunks else ("auto", "reference", FAST.get(case.kind, "linear"))
    if case.kind not in FAST and not case.chunks and not isinstance(load(), str):
        names = (*names, "native")
    known: dict[bool, tuple[Tensors, Tensors]] = {}
    verdicts = []
    for backend in names:
        second = case.second and bool(call.learners) and (SECOND is None or backend in SECOND)
        if second not in known:
            known[second] = expected(call, second)
        verdicts.append(_verdict(call, backend, second, *known[second]))
    return verdicts


def _verdict(
    call: MechanismCall, backend: str, second: bool, expected: Tensors, errors: Tensors
) -> CaseVerdict:
    name = f"{call.case.kind} {backend}"
    try:
        results = _continued(call) if backend == "state" else _compute(call, backend, second)
    except rg.UnsupportedError as refusal:
        return CaseVerdict(
            name, "off" if backend in ("auto", "reference") else "refused", str(refusal)
        )
    except Exception:
        return raised(name)
    wrong = []
    worst = 0.0
    for result, x in results.items():
        reason, share = share_of(result, x, expected[result], errors[result], call.dtype)
        worst = max(worst, share)
        if share > 1:
            wrong.append(reason)
    return CaseVerdict(name, "off" if wrong else "right", "; ".join(wrong), worst)


def _compute(call: MechanismCall, backend: str, second: bool) -> Tensors:
    case = call.case
    leaves = {name: x.requires_grad_(name in call.learners) for name, x in call.poisoned().items()}
    options = {
        "pattern": call.pattern(),
        "mechanism": call.mechanism,
        "parameters": call.parameters(leaves),
        "q_start": case.q_start,
        "backend": backend,
    }
    if case.scale is not None:
        options["scale"] = case.scale
    k = leaves["k"]
    q = leaves.get("q", k)
    if "q" not in leaves and case.q_len < case.k_len:
        q = k[:, :, case.k_len - case.q_len :]
    with torch.set_grad_enabled(bool(call.learners)):
        results = {"output": rg.attention(q, k, leaves["v"], **options)}
    if call.learners:
        learning = {name: leaves[name] for name in call.learners}
        # With and without a graph of its own, as in judging.py.
        grad_output = call.grad_output.clone().requires_grad_(second and case.seed % 20 < 10)
        along = call.directions if second else None
        first, twice = differentiated(results, learning, {"output": grad_output}, along)
        results |= named(first, twice)
    return detached(results)


def _continued(call: MechanismCall) -> Tensors:
    """The text in chunks, by a state of constant size."""
    case = call.case
    state = RecurrentState(
        call.mechanism, case.batch, case.kv_heads, case.head_dim, case.v_dim, dtype=call.dtype
    )
    outputs = []
    with torch.no_grad():
        for start in range(0, case.k_len, case.chunks):
            part = slice(start, start + case.chunks)
            chunk = {name: x[:, :, part] for name, x in call.poisoned().items()}
            options = {
                "pattern": call.pattern(),
                "scale": case.scale,
                "parameters": call.parameters(chunk),
            }
            outputs.append(state.attend(chunk["q"], chunk["k"], chunk["v"], **options))
    return {"output": torch.cat(outputs, 2)}


def simpler_mechanism(case: MechanismCase) -> Iterator[MechanismCase]:
    """Cases with one thing less."""
    names = "second dtype scale q_start learners"
    if case.kind != "gated":  # which is causal
        names += " pattern"
    yield from with_default(case, MechanismCase(case.seed, case.kind), names)
    yield from halved(case, "batch head_dim v_dim features q_len k_len")
