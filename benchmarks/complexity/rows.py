"""The rows of the table: what each computes at a given length, and the growth that its paper promises."""

from dataclasses import dataclass

from benchmarks.complexity.calls import (
    PrepareLength,
    attending,
    chosen_blocks,
    convolution,
    hash_buckets,
    latent,
    recurrent,
    remembering,
    root,
    written_out,
)
from benchmarks.complexity.growth import N_LOG_N, N_ROOT_N, N_SQUARED, CostGrowth, N
from regard.mechanisms import (
    LSH,
    GatedDelta,
    KimiDelta,
    LinearTransformer,
    Linformer,
    Performer,
    RandomFeature,
    Retention,
)
from regard.mechanisms.recurrent import Recurrent
from regard.patterns import Causal, Fixed, Full, GlobalTokens, RandomBlocks, SlidingWindow, Strided
from regard_lab.bench.work import BIG_BIRD


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
    prepare: PrepareLength
    source: str
    memory: CostGrowth = N
    exact: str = "softmax"
    correction: str = ""
    longest: int | None = None


VASWANI = "Vaswani et al. 2017, table 1"
CHILD = "Child et al. 2019, section 4"
LINEAR = "Katharopoulos et al. 2020, section 3.2"
NOT_LINEAR = "often listed as O(n); its paper states n·sqrt(n), for a stride that grows with sqrt(n), as here"
HASHING = (
    "often listed as O(n); its paper states n·log n, for sorting, without the hashing: with n / 32 buckets hashing "
    "takes n²·d / 32 operations per round; with two hashes whose product has that many buckets, as here, "
    "n·sqrt(n / 32)·2·d"
)

_CLASSIC = (
    CostRow(
        name="written-out",
        title="self-attention, every weight in memory",
        cost="n²·d",
        growth=N_SQUARED,
        sequential="O(1)",
        path="O(1)",
        prepare=written_out,
        source=VASWANI,
        memory=N_SQUARED,
        longest=128**2,
    ),
    CostRow(
        name="softmax",
        title="self-attention",
        cost="n²·d",
        growth=N_SQUARED,
        sequential="O(1)",
        path="O(1)",
        prepare=attending(lambda n: Full()),
        source=VASWANI,
        exact="",
    ),
    CostRow(
        name="causal",
        title="self-attention, causal",
        cost="n²·d",
        growth=N_SQUARED,
        sequential="O(1)",
        path="O(1)",
        prepare=attending(lambda n: Causal()),
        source=VASWANI,
        exact="",
    ),
    CostRow(
        name="latent",
        title="latent attention, 4 heads, causal",
        cost="n²·d",
        growth=N_SQUARED,
        sequential="O(1)",
        path="O(1)",
        prepare=latent,
        source="DeepSeek-V2 2024, section 2.1",
        exact="",
        correction="what it saves is the cache, here 48 numbers a token instead of 128; the time grows as before",
    ),
    CostRow(
        name="gru",
        title="recurrent (GRU)",
        cost="n·d²",
        growth=N,
        sequential="O(n)",
        path="O(n)",
        prepare=recurrent,
        source=VASWANI,
    ),
    CostRow(
        name="conv-3",
        title="convolution, k = 3",
        cost="k·n·d²",
        growth=N,
        sequential="O(1)",
        path="O(n/k)",
        prepare=convolution(3),
        source=VASWANI,
    ),
    CostRow(
        name="conv-7",
        title="convolution, k = 7",
        cost="k·n·d²",
        growth=N,
        sequential="O(1)",
        path="O(n/k)",
        prepare=convolution(7),
        source=VASWANI,
    ),
)

_PATTERNS = (
    CostRow(
        name="window",
        title="window, w = 256",
        cost="n·w·d",
        growth=N,
        sequential="O(1)",
        path="O(n/w)",
        prepare=attending(lambda n: SlidingWindow(256)),
        source="Beltagy et al. 2020, section 3.1",
    ),
    CostRow(
        name="global",
        title="global tokens, g = 64",
        cost="n·g·d",
        growth=N,
        sequential="O(1)",
        path="O(1)",
        prepare=attending(lambda n: GlobalTokens(range(64))),
        source="Beltagy et al. 2020, section 3.1",
    ),
    CostRow(
        name="random",
        title="random blocks, r = 3 of 64",
        cost="n·r·d",
        growth=N,
        sequential="O(1)",
        path="O(log n)",
        prepare=attending(lambda n: RandomBlocks(3, block=64, seed=0)),
        source="Zaheer et al. 2020, section 2",
    ),
    CostRow(
        name="big-bird",
        title="BigBird, w = 192, g = 128, r = 3 of 64",
        cost="n·(w + g + r)·d",
        growth=N,
        sequential="O(1)",
        path="O(1)",
        prepare=attending(lambda n: BIG_BIRD),
        source="Zaheer et al. 2020, section 2",
    ),
    CostRow(
        name="chosen",
        title="chosen blocks, c = 16 of 64, causal",
        cost="n·c·d",
        growth=N,
        sequential="O(1)",
        path="by the choice",
        prepare=attending(chosen_blocks),
        source="Yuan et al. 2025, section 3.3.2",
        exact="causal",
        correction="without the choice itself: comparing each query with n / 64 block means grows as n²·d / 64",
    ),
    CostRow(
        name="strided",
        title="Sparse Transformer, strided, causal",
        cost="n·sqrt(n)·d",
        growth=N_ROOT_N,
        sequential="O(1)",
        path="O(1)",
        prepare=attending(lambda n: Causal() & Strided(root(n))),
        source=CHILD,
        exact="causal",
        correction=NOT_LINEAR,
    ),
    CostRow(
        name="fixed",
        title="Sparse Transformer, fixed, c = 8, causal",
        cost="n·sqrt(n)·d",
        growth=N_ROOT_N,
        sequential="O(1)",
        path="O(1)",
        prepare=attending(lambda n: Causal() & Fixed(root(n), summary=8)),
        source=CHILD,
        exact="causal",
        correction=NOT_LINEAR,
    ),
)

_MECHANISMS = (
    CostRow(
        name="reformer",
        title="Reformer, chunks of 64, 2 rounds",
        cost="n·log n·d",
        growth=N_LOG_N,
        sequential="O(log n)",
        path="O(1)",
        prepare=attending(
            lambda n: Full(),
            lambda n: LSH(chunk=64, buckets=hash_buckets(n), rounds=2),
            shares_keys=True,
        ),
        source="Kitaev et al. 2020, table 1",
        correction=HASHING,
    ),
    CostRow(
        name="linformer",
        title="Linformer, rank 64",
        cost="n·rank·d",
        growth=N,
        sequential="O(1)",
        path="O(1)",
        prepare=attending(lambda n: Full(), lambda n: Linformer(n, rank=64)),
        source="Wang et al. 2020, table 1",
    ),
    CostRow(
        name="linear",
        title="linear, elu + 1",
        cost="n·d²",
        growth=N,
        sequential="O(1)",
        path="O(1)",
        prepare=attending(lambda n: Full(), lambda n: LinearTransformer()),
        source=LINEAR,
    ),
    CostRow(
        name="linear-causal",
        title="linear, elu + 1, causal",
        cost="n·d²",
        growth=N,
        sequential="O(log n)",
        path="O(1)",
        prepare=attending(lambda n: Causal(), lambda n: LinearTransformer()),
        source=LINEAR,
        exact="causal",
    ),
    CostRow(
        name="performer",
        title="Performer, m = 128, causal",
        cost="n·m·d",
        growth=N,
        sequential="O(log n)",
        path="O(1)",
        prepare=attending(lambda n: Causal(), lambda n: Performer(features=128)),
        source="Choromanski et al. 2021, section 2.4",
        exact="causal",
    ),
    CostRow(
        name="random-feature",
        title="random features, m = 64, causal",
        cost="n·m·d",
        growth=N,
        sequential="O(log n)",
        path="O(1)",
        prepare=attending(lambda n: Causal(), lambda n: RandomFeature(features=64)),
        source="Peng et al. 2021, section 3",
        exact="causal",
    ),
)


def _memory_row(name: str, title: str, mechanism: Recurrent, source: str) -> CostRow:
    """A causal mechanism that keeps a memory of constant size, computed in chunks of c positions."""
    return CostRow(
        name=name,
        title=f"{title}, causal",
        cost="n·d²",
        growth=N,
        sequential="O(n/c)",
        path="O(1)",
        prepare=remembering(mechanism),
        source=source,
        exact="causal",
    )


_MEMORIES = (
    _memory_row(
        "retention",
        "retention",
        Retention(),
        "Sun et al. 2023, section 2.3: chunks of c positions one after the other",
    ),
    _memory_row("gated-delta", "gated delta rule", GatedDelta(), "Yang et al. 2025, section 3.3"),
    _memory_row("kimi-delta", "Kimi delta attention", KimiDelta(), "Kimi Team 2025, section 3.1"),
)

ROWS: dict[str, CostRow] = {
    row.name: row for row in (*_CLASSIC, *_PATTERNS, *_MECHANISMS, *_MEMORIES)
}
