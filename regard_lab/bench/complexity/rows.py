"""The rows of the table: what each row computes at a given length, and the growth that its paper promises."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from regard.functional import attention, plan_attention
from regard.layers import LatentAttention
from regard.mechanisms import (
    LSH,
    GatedDelta,
    KimiDelta,
    LinearTransformer,
    Linformer,
    Mechanism,
    Performer,
    RandomFeature,
    Retention,
    Softmax,
)
from regard.mechanisms.base import Sizes
from regard.mechanisms.recurrent import Recurrent
from regard.patterns import (
    Causal,
    Fixed,
    Full,
    GlobalTokens,
    Pattern,
    RandomBlocks,
    SlidingWindow,
    Strided,
)
from regard.patterns.chosen import ChosenBlocks
from regard.reprs import brief
from regard.testing import make_qkv
from regard_lab.bench.work import BIG_BIRD


@brief
@dataclass(frozen=True)
class CostGrowth:
    """How a cost grows with the length n: `text` for reports, and the function."""

    text: str
    of: Callable[[int], float]

    def exponent(self, lengths: Sequence[int]) -> float:
        """The exponent that a fit over these lengths gives for exactly this growth.

        >>> N_LOG_N.exponent([4096, 16384]) > N.exponent([4096, 16384]) == 1.0
        True
        """
        return slope(lengths, [self.of(n) for n in lengths])


N = CostGrowth("n", float)
N_LOG_N = CostGrowth("n·log n", lambda n: n * math.log(n))
N_ROOT_N = CostGrowth("n·sqrt(n)", lambda n: n**1.5)
N_SQUARED = CostGrowth("n²", lambda n: float(n) ** 2)


def slope(lengths: Sequence[int], values: Sequence[float]) -> float:
    """The exponent of the best power law: least squares of log value over log length.

    >>> slope([10, 100, 1000], [5.0, 500.0, 50000.0])
    2.0
    """
    x, y = ([math.log(value) for value in each] for each in (lengths, values))
    middle_x = sum(x) / len(x)
    middle_y = sum(y) / len(y)
    rise = sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True))
    return round(rise / sum((a - middle_x) ** 2 for a in x), 12)


@brief
@dataclass(frozen=True)
class TimedCall:
    """A forward pass at one length, ready to run.

    Args:
        run: computes the output.
        operations: number of floating-point operations, by a formula or by the plan.
        expected: computes the same by another backend, if there is one; it may need quadratic memory.
    """

    run: Callable[[], torch.Tensor]
    operations: float
    expected: Callable[[], torch.Tensor] | None = None


@brief
@dataclass(frozen=True)
class CostRow:
    """A layer or mechanism, its promised cost, and how it is computed.

    Args:
        name: its name on the command line.
        title: its name in reports.
        cost: the promised cost, such as `n·w·d`.
        growth: growth of the time with the length n.
        sequential: number of sequential operations.
        path: longest path between two positions.
        prepare: makes the call for a length.
        source: the paper with the promise.
        memory: growth of the memory.
        exact: the row of exact attention for comparison; "" for that row itself.
        correction: a remark on a common mistake in popular articles.
        longest: the largest length, if memory limits it.
    """

    name: str
    title: str
    cost: str
    growth: CostGrowth
    sequential: str
    path: str
    prepare: Callable[[int], TimedCall]
    source: str
    memory: CostGrowth = N
    exact: str = "softmax"
    correction: str = ""
    longest: int | None = None


DIM = 64
Prepare = Callable[[int], TimedCall]


def attending(
    pattern: Callable[[int], Pattern],
    mechanism: Callable[[int], Mechanism] = lambda n: Softmax(),
    *,
    shares_keys: bool = False,
) -> Prepare:
    """regard's attention with a pattern and mechanism for each length, on the backend that the plan chooses."""

    def prepare(n: int) -> TimedCall:
        q, k, v = _tensors(n)
        chosen = mechanism(n)
        learned = chosen.new_parameters(generator=torch.Generator().manual_seed(0))
        run = partial(
            attention,
            q,
            q if shares_keys else k,
            v,
            pattern=pattern(n),
            mechanism=chosen,
            parameters={name: x.detach() for name, x in learned.items()},
        )
        plan = plan_attention(*run.args, **run.keywords)
        return TimedCall(torch.no_grad()(run), plan.cost.flops, partial(run, backend="reference"))

    return prepare


def remembering(mechanism: Recurrent) -> Prepare:
    """A recurrent mechanism with random decays and strengths, and keys of length 1."""

    def prepare(n: int) -> TimedCall:
        q, k, v = _tensors(n)
        draws = torch.Generator().manual_seed(0)
        shapes = mechanism.parameter_shapes(Sizes(1, 1, 1, n, DIM))
        parameters = {name: torch.rand(shape, generator=draws) for name, shape in shapes.items()}
        parameters |= {name: -x / 10 for name, x in parameters.items() if name == "log_decay"}
        run = partial(
            attention,
            q,
            nn.functional.normalize(k, dim=-1),
            v,
            pattern=Causal(),
            mechanism=mechanism,
            parameters=parameters,
        )
        plan = plan_attention(*run.args, **run.keywords)
        return TimedCall(torch.no_grad()(run), plan.cost.flops, partial(run, backend="reference"))

    return prepare


def written_out(n: int) -> TimedCall:
    """Softmax attention written out as its formula, with all weights in memory."""
    q, k, v = _tensors(n)
    return TimedCall(
        lambda: (q @ k.mT * DIM**-0.5).softmax(-1) @ v,
        4.0 * n * n * DIM,
        partial(attention, q, k, v),
    )


def latent(n: int) -> TimedCall:
    """Causal latent attention of 4 heads, in the form that costs less; the other form gives the expected output."""
    torch.manual_seed(0)
    layer = LatentAttention(DIM, 4, latent_dim=32, rope_dim=16, head_dim=16, pattern="causal")
    plan = layer.plan(1, n)
    x = _text(n)
    other = "expanded" if plan.form == "absorbed" else "absorbed"
    return TimedCall(
        _without_gradients(layer, x),
        getattr(plan, plan.form).flops,
        torch.no_grad()(partial(layer, x, form=other)),
    )


def recurrent(n: int) -> TimedCall:
    """A gated recurrent unit: two products with (dim, 3 dim) per position."""
    torch.manual_seed(0)
    layer = nn.GRU(DIM, DIM, batch_first=True)
    return TimedCall(_without_gradients(layer, _text(n), 0), 12.0 * n * DIM**2)


def convolution(width: int) -> Prepare:
    """A convolution over `width` neighbours: `width` products with (dim, dim) per position."""

    def prepare(n: int) -> TimedCall:
        torch.manual_seed(0)
        layer = nn.Conv1d(DIM, DIM, width, padding=width // 2)
        return TimedCall(
            _without_gradients(layer, _text(n).mT.contiguous()), 2.0 * width * n * DIM**2
        )

    return prepare


def chosen(n: int) -> Pattern:
    """Causal attention of each block of 64 queries to its own block of keys and 15 random ones up to it."""
    own = torch.arange(-(-n // 64))[:, None]
    earlier = torch.rand(len(own), 15, generator=torch.Generator().manual_seed(0)) * (own + 1)
    return Causal() & ChosenBlocks(
        torch.cat([own, earlier.long()], 1)[None, None], block=64, query_block=64
    )


def root(n: int) -> int:
    """The stride of the Sparse Transformer: close to the square root of the length."""
    return max(1, math.isqrt(n))


def _tensors(n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return make_qkv(batch=1, heads=1, kv_heads=1, q_len=n, k_len=n, head_dim=DIM, v_dim=DIM)


def _text(n: int) -> torch.Tensor:
    return torch.randn(1, n, DIM, generator=torch.Generator().manual_seed(0))


def _without_gradients(
    layer: nn.Module, x: torch.Tensor, part: int | None = None
) -> Callable[[], torch.Tensor]:
    """A function that calls the layer; `part` is the index of the output in a returned tuple."""

    @torch.no_grad()
    def run() -> torch.Tensor:
        answer = layer(x)
        return answer if part is None else answer[part]

    return run


VASWANI = "Vaswani et al. 2017, table 1"
CHILD = "Child et al. 2019, section 4"
LINEAR = "Katharopoulos et al. 2020, section 3.2"
NOT_LINEAR = "often listed as O(n); its paper states n·sqrt(n), for a stride that grows with sqrt(n), as here"
HASHING = (
    "often listed as O(n); its paper states n·log n, for sorting, without the hashing: with n / 32 buckets hashing "
    "takes n²·d / 32 operations per round; with two hashes whose product has that many buckets, as here, "
    "n·sqrt(n / 32)·2·d"
)


def factors(n: int) -> tuple[int, int]:
    """Two even numbers whose product is about n / 32, so that chunks of 64 are twice the mean size of a bucket."""
    first = max(2, 2 * round(math.sqrt(n / 32) / 2))
    return first, max(2, 2 * round(n / 32 / first / 2))


_CLASSIC = (
    CostRow(
        "written-out",
        "self-attention, every weight in memory",
        "n²·d",
        N_SQUARED,
        "O(1)",
        "O(1)",
        written_out,
        VASWANI,
        memory=N_SQUARED,
        longest=128**2,
    ),
    CostRow(
        "softmax",
        "self-attention",
        "n²·d",
        N_SQUARED,
        "O(1)",
        "O(1)",
        attending(lambda n: Full()),
        VASWANI,
        exact="",
    ),
    CostRow(
        "causal",
        "self-attention, causal",
        "n²·d",
        N_SQUARED,
        "O(1)",
        "O(1)",
        attending(lambda n: Causal()),
        VASWANI,
        exact="",
    ),
    CostRow(
        "latent",
        "latent attention, 4 heads, causal",
        "n²·d",
        N_SQUARED,
        "O(1)",
        "O(1)",
        latent,
        "DeepSeek-V2 2024, section 2.1",
        exact="",
        correction="what it saves is the cache, here 48 numbers a token instead of 128; the time grows as before",
    ),
    CostRow("gru", "recurrent (GRU)", "n·d²", N, "O(n)", "O(n)", recurrent, VASWANI),
    CostRow("conv-3", "convolution, k = 3", "k·n·d²", N, "O(1)", "O(n/k)", convolution(3), VASWANI),
    CostRow("conv-7", "convolution, k = 7", "k·n·d²", N, "O(1)", "O(n/k)", convolution(7), VASWANI),
)

_PATTERNS = (
    CostRow(
        "window",
        "window, w = 256",
        "n·w·d",
        N,
        "O(1)",
        "O(n/w)",
        attending(lambda n: SlidingWindow(256)),
        "Beltagy et al. 2020, section 3.1",
    ),
    CostRow(
        "global",
        "global tokens, g = 64",
        "n·g·d",
        N,
        "O(1)",
        "O(1)",
        attending(lambda n: GlobalTokens(range(64))),
        "Beltagy et al. 2020, section 3.1",
    ),
    CostRow(
        "random",
        "random blocks, r = 3 of 64",
        "n·r·d",
        N,
        "O(1)",
        "O(log n)",
        attending(lambda n: RandomBlocks(3, block=64, seed=0)),
        "Zaheer et al. 2020, section 2",
    ),
    CostRow(
        "big-bird",
        "BigBird, w = 192, g = 128, r = 3 of 64",
        "n·(w + g + r)·d",
        N,
        "O(1)",
        "O(1)",
        attending(lambda n: BIG_BIRD),
        "Zaheer et al. 2020, section 2",
    ),
    CostRow(
        "chosen",
        "chosen blocks, c = 16 of 64, causal",
        "n·c·d",
        N,
        "O(1)",
        "by the choice",
        attending(chosen),
        "Yuan et al. 2025, section 3.3.2",
        exact="causal",
        correction="without the choice itself: comparing each query with n / 64 block means grows as n²·d / 64",
    ),
    CostRow(
        "strided",
        "Sparse Transformer, strided, causal",
        "n·sqrt(n)·d",
        N_ROOT_N,
        "O(1)",
        "O(1)",
        attending(lambda n: Causal() & Strided(root(n))),
        CHILD,
        exact="causal",
        correction=NOT_LINEAR,
    ),
    CostRow(
        "fixed",
        "Sparse Transformer, fixed, c = 8, causal",
        "n·sqrt(n)·d",
        N_ROOT_N,
        "O(1)",
        "O(1)",
        attending(lambda n: Causal() & Fixed(root(n), summary=8)),
        CHILD,
        exact="causal",
        correction=NOT_LINEAR,
    ),
)

_MECHANISMS = (
    CostRow(
        "reformer",
        "Reformer, chunks of 64, 2 rounds",
        "n·log n·d",
        N_LOG_N,
        "O(log n)",
        "O(1)",
        attending(
            lambda n: Full(),
            lambda n: LSH(chunk=64, buckets=factors(n), rounds=2),
            shares_keys=True,
        ),
        "Kitaev et al. 2020, table 1",
        correction=HASHING,
    ),
    CostRow(
        "linformer",
        "Linformer, rank 64",
        "n·rank·d",
        N,
        "O(1)",
        "O(1)",
        attending(lambda n: Full(), lambda n: Linformer(n, rank=64)),
        "Wang et al. 2020, table 1",
    ),
    CostRow(
        "linear",
        "linear, elu + 1",
        "n·d²",
        N,
        "O(1)",
        "O(1)",
        attending(lambda n: Full(), lambda n: LinearTransformer()),
        LINEAR,
    ),
    CostRow(
        "linear-causal",
        "linear, elu + 1, causal",
        "n·d²",
        N,
        "O(log n)",
        "O(1)",
        attending(lambda n: Causal(), lambda n: LinearTransformer()),
        LINEAR,
        exact="causal",
    ),
    CostRow(
        "performer",
        "Performer, m = 128, causal",
        "n·m·d",
        N,
        "O(log n)",
        "O(1)",
        attending(lambda n: Causal(), lambda n: Performer(features=128)),
        "Choromanski et al. 2021, section 2.4",
        exact="causal",
    ),
    CostRow(
        "random-feature",
        "random features, m = 64, causal",
        "n·m·d",
        N,
        "O(log n)",
        "O(1)",
        attending(lambda n: Causal(), lambda n: RandomFeature(features=64)),
        "Peng et al. 2021, section 3",
        exact="causal",
    ),
    CostRow(
        "retention",
        "retention, causal",
        "n·d²",
        N,
        "O(n/c)",
        "O(1)",
        remembering(Retention()),
        "Sun et al. 2023, section 2.3: chunks of c positions one after the other",
        exact="causal",
    ),
    CostRow(
        "gated-delta",
        "gated delta rule, causal",
        "n·d²",
        N,
        "O(n/c)",
        "O(1)",
        remembering(GatedDelta()),
        "Yang et al. 2025, section 3.3",
        exact="causal",
    ),
    CostRow(
        "kimi-delta",
        "Kimi delta attention, causal",
        "n·d²",
        N,
        "O(n/c)",
        "O(1)",
        remembering(KimiDelta()),
        "Kimi Team 2025, section 3.1",
        exact="causal",
    ),
)

ROWS: dict[str, CostRow] = {row.name: row for row in (*_CLASSIC, *_PATTERNS, *_MECHANISMS)}
