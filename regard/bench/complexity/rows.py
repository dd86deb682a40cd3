"""The rows: what is measured, and what its paper promises."""

from __future__ import annotations

import math

from regard.bench.complexity.layers import attending, convolution, recurrent, root, written_out
from regard.bench.complexity.row import N_LOG_N, N_ROOT_N, N_SQUARED, N, Row
from regard.bench.subjects import BIG_BIRD
from regard.mechanisms import LSH, LinearTransformer, Linformer, Performer, RandomFeature
from regard.patterns import Causal, Fixed, Full, GlobalTokens, RandomBlocks, SlidingWindow, Strided

VASWANI = "Vaswani et al. 2017, table 1"
CHILD = "Child et al. 2019, section 4"
LINEAR = "Katharopoulos et al. 2020, section 3.2"
NOT_LINEAR = "often listed as O(n); its paper says n·sqrt(n), for a stride that grows with sqrt(n), as here"
HASHING = (
    "often listed as O(n); its paper says n·log n, to sort, and leaves out the hashing: into n / 32 buckets it takes "
    "n²·d / 32 operations a round, into a product of two numbers, as here, n·sqrt(n / 32)·2·d"
)


def factors(n: int) -> tuple[int, int]:
    """Two even numbers whose product is near n / 32, so that chunks of 64 are twice a bucket's mean size."""
    first = max(2, 2 * round(math.sqrt(n / 32) / 2))
    return first, max(2, 2 * round(n / 32 / first / 2))


_CLASSIC = (
    Row(
        "written-out", "self-attention, every weight in memory", "classic", "n²·d", N_SQUARED, "O(1)", "O(1)",
        written_out, VASWANI, memory=N_SQUARED, longest=128**2,
    ),
    Row(
        "softmax", "self-attention", "classic", "n²·d", N_SQUARED, "O(1)", "O(1)", attending(lambda n: Full()),
        VASWANI, exact="",
    ),
    Row(
        "causal", "self-attention, causal", "classic", "n²·d", N_SQUARED, "O(1)", "O(1)",
        attending(lambda n: Causal()), VASWANI, exact="",
    ),
    Row("gru", "recurrent (GRU)", "classic", "n·d²", N, "O(n)", "O(n)", recurrent, VASWANI),
    Row("conv-3", "convolution, k = 3", "classic", "k·n·d²", N, "O(1)", "O(n/k)", convolution(3), VASWANI),
    Row("conv-7", "convolution, k = 7", "classic", "k·n·d²", N, "O(1)", "O(n/k)", convolution(7), VASWANI),
)  # fmt: skip

_PATTERNS = (
    Row(
        "window", "window, w = 256", "patterns", "n·w·d", N, "O(1)", "O(n/w)", attending(lambda n: SlidingWindow(256)),
        "Beltagy et al. 2020, section 3.1",
    ),
    Row(
        "global", "global tokens, g = 64", "patterns", "n·g·d", N, "O(1)", "O(1)",
        attending(lambda n: GlobalTokens(range(64))), "Beltagy et al. 2020, section 3.1",
    ),
    Row(
        "random", "random blocks, r = 3 of 64", "patterns", "n·r·d", N, "O(1)", "O(log n)",
        attending(lambda n: RandomBlocks(3, block=64, seed=0)), "Zaheer et al. 2020, section 2",
    ),
    Row(
        "big-bird", "BigBird, w = 192, g = 128, r = 3 of 64", "patterns", "n·(w + g + r)·d", N, "O(1)", "O(1)",
        attending(lambda n: BIG_BIRD), "Zaheer et al. 2020, section 2",
    ),
    Row(
        "strided", "Sparse Transformer, strided, causal", "patterns", "n·sqrt(n)·d", N_ROOT_N, "O(1)", "O(1)",
        attending(lambda n: Causal() & Strided(root(n))), CHILD, exact="causal", correction=NOT_LINEAR,
    ),
    Row(
        "fixed", "Sparse Transformer, fixed, c = 8, causal", "patterns", "n·sqrt(n)·d", N_ROOT_N, "O(1)", "O(1)",
        attending(lambda n: Causal() & Fixed(root(n), summary=8)), CHILD, exact="causal", correction=NOT_LINEAR,
    ),
)  # fmt: skip

_MECHANISMS = (
    Row(
        "reformer", "Reformer, chunks of 64, 2 rounds", "mechanisms", "n·log n·d", N_LOG_N, "O(log n)", "O(1)",
        attending(lambda n: Full(), lambda n: LSH(chunk=64, buckets=factors(n), rounds=2), shares_keys=True),
        "Kitaev et al. 2020, table 1", correction=HASHING,
    ),
    Row(
        "linformer", "Linformer, rank 64", "mechanisms", "n·rank·d", N, "O(1)", "O(1)",
        attending(lambda n: Full(), lambda n: Linformer(n, rank=64)), "Wang et al. 2020, table 1",
    ),
    Row(
        "linear", "linear, elu + 1", "mechanisms", "n·d²", N, "O(1)", "O(1)",
        attending(lambda n: Full(), lambda n: LinearTransformer()), LINEAR,
    ),
    Row(
        "linear-causal", "linear, elu + 1, causal", "mechanisms", "n·d²", N, "O(log n)", "O(1)",
        attending(lambda n: Causal(), lambda n: LinearTransformer()), LINEAR, exact="causal",
    ),
    Row(
        "performer", "Performer, m = 128, causal", "mechanisms", "n·m·d", N, "O(log n)", "O(1)",
        attending(lambda n: Causal(), lambda n: Performer(features=128)), "Choromanski et al. 2021, section 2.4",
        exact="causal",
    ),
    Row(
        "random-feature", "random features, m = 64, causal", "mechanisms", "n·m·d", N, "O(log n)", "O(1)",
        attending(lambda n: Causal(), lambda n: RandomFeature(features=64)), "Peng et al. 2021, section 3",
        exact="causal",
    ),
)  # fmt: skip

ROWS: dict[str, Row] = {row.name: row for row in (*_CLASSIC, *_PATTERNS, *_MECHANISMS)}
