"""The flex backend without a GPU: FlexAttention is not compiled but computed pair by pair.

Its compiled kernels run on CPU in a slow test, without gradients, and on cuda where there is one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as flex_attention_file
from torch.nn.attention.flex_attention import AuxOutput, create_block_mask, flex_attention

import regard as rg
from regard import patterns as p
from regard.backends import BACKENDS
from regard.backends.flex import Flex
from regard.backends.flex import backend as flex_backend
from regard.backends.flex.tables import block_mask, runs_of
from regard.backends.flex.tile_map import pairs_of_tiles, tile_map
from regard.bias import ALiBi
from regard.core.backend import Cost, Offer, Refusal
from regard.core.call import make_problem
from regard.core.plan import make_plan
from regard.core.problem import Problem
from regard.patterns.bands import Diagonals
from regard.patterns.grid import Grid, four_axes
from regard.testing import Budget, answer, make_qkv

TRACED = Flex(devices=("cpu",), compiled=False)
# torch, of its own compiler
IMPORTING = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*")
DOCUMENTS = torch.tensor([0] * 90 + [1] * 110 + [0] * 30 + [2] * 170)
PATTERNS: dict[str, p.Pattern] = {
    "window": p.SlidingWindow(300),
    "narrow window": p.CausalWindow(7),
    "window in a span": p.CausalWindow(40) & p.KeySpan(30, 290),
    "window and global": p.SlidingWindow(8) | p.GlobalTokens([0, 17, 180]),
    "bigbird": p.SlidingWindow(6) | p.GlobalTokens(range(3)) | p.RandomBlocks(2, block=32, seed=3),
    "random past": p.RandomBlocks(2, block=16, seed=5, past=True) & p.Causal(),
    "strided": p.Causal() & p.Strided(40),
    "fixed": p.Fixed(64, summary=2),
    "dilated": p.DilatedWindow(30, 3),
    "sieve": p.Strided(9),
    "prefix": p.Causal() | p.Prefix(11),
    "far": ~p.SlidingWindow(90),
    "nobody at first": Diagonals(ahead=-150),
    "documents": p.SameDocument(DOCUMENTS) & p.Causal(),
    "documents by row": p.SameDocument(torch.stack([DOCUMENTS, DOCUMENTS.flip(0)]))
    & p.SlidingWindow(200),
    "padding by row": p.SlidingWindow(60)
    & p.KeySpan(torch.tensor([30, 0]), torch.tensor([280, 33])),
    "by head": p.PerHead([p.CausalWindow(30), p.Strided(50), p.SlidingWindow(4), p.Full()]),
    "by head and row": p.PerHead([p.Causal(), p.Full()] * 2)
    & p.KeySpan(0, torch.tensor([150, 301])),
}
LENGTHS = {
    "equal": (257, 257, None),
    "keys": (130, 380, None),
    "queries": (300, 140, None),
    "shifted": (140, 301, 77),
}


@dataclass(frozen=True)
class FlexPlace:
    """A pattern with the lengths and the first position of a call, by their names."""

    pattern_name: str
    lengths: str

    @property
    def pattern(self) -> p.Pattern:
        return PATTERNS[self.pattern_name]

    @property
    def q_len(self) -> int:
        return LENGTHS[self.lengths][0]

    @property
    def k_len(self) -> int:
        return LENGTHS[self.lengths][1]

    @property
    def q_start(self) -> int | None:
        return LENGTHS[self.lengths][2]

    def dense(self) -> torch.Tensor:
        """The allowed pairs, (q_len, k_len), or with axes of batch rows and heads before them."""
        return self.pattern.dense(self.q_len, self.k_len, q_start=self.q_start)

    def grid_from(self, first_key: int) -> Grid:
        """The positions without the first keys, so that keys do not begin at a whole tile."""
        grid = Grid.whole(self.q_len, self.k_len, self.q_start)
        return grid.block(grid.rows, range(first_key, self.k_len))

    def __str__(self) -> str:
        return f"{self.pattern_name}, {self.lengths}"


def two_lengths_of(number: int, name: str) -> tuple[FlexPlace, FlexPlace]:
    """A pattern with two of the lengths, in turn."""
    lengths = [*LENGTHS]
    first = number + number // 4
    return FlexPlace(name, lengths[first % 4]), FlexPlace(name, lengths[(first + 2) % 4])


FIRST_PLACES: list[FlexPlace] = []
PLACES: list[FlexPlace] = []
for number, name in enumerate(PATTERNS):
    first_place, second_place = two_lengths_of(number, name)
    FIRST_PLACES.append(first_place)
    PLACES += first_place, second_place
# One for each way in which the pairs inside of tiles are told: by limits, runs, bits, head and row.
TRACED_NAMES = ("narrow window", "strided", "sieve", "by head", "documents by row")
BIASES = {
    "every pair": (2, 4, 150, 290),
    "by head": (4, 1, 290),
    "by key": (290,),
    "by row": (2, 1, 150, 1),
    "one number": (1, 1, 1, 1),
}


@pytest.fixture(autouse=True, scope="module")
def _nothing_compiled_before() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def untraced(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlexAttention calls its operation without tracing it, which takes most of the time of a small call."""
    monkeypatch.setattr(flex_attention_file, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    monkeypatch.setattr(flex_backend, "_kernel", lambda compiled: flex_attention)


def detail(backend: Any, *qkv: torch.Tensor, want: Any = ("log_sum_exp",), **options: Any) -> Any:
    """The result of a backend that need not be in the table."""
    with torch.no_grad():
        problem = make_problem(*qkv, want=want, **options)
        plan = make_plan(problem, {backend.name: backend}, backend.name)
        return plan.detail(*qkv, bias=options.get("bias"))


def assert_equals_the_oracle(
    qkv: tuple[torch.Tensor, ...],
    pattern: p.Pattern,
    q_start: int | None = None,
    bias: torch.Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> None:
    q, k, _ = qkv
    options = {"q_start": q_start, "bias": bias, "scale": scale, "softcap": softcap}
    found = detail(TRACED, *qkv, pattern=pattern, **options)
    allowed = pattern.dense(q.shape[2], k.shape[2], q_start=q_start)
    wide = [x.double() for x in qkv]
    scale = q.shape[3] ** -0.5 if scale is None else scale
    added = None if bias is None else four_axes(bias.double()).numpy()
    expected = answer(*wide, allowed, scale=scale, softcap=softcap, bias=added)
    budget = Budget.of(*wide, q.dtype, scale=scale, bias=bias)
    assert found.output.dtype == q.dtype
    assert budget.share("output", found.output, expected.output) <= 1
    assert budget.share("log_sum_exp", found.log_sum_exp, expected.log_sum_exp) <= 1


@pytest.mark.parametrize("place", FIRST_PLACES, ids=str)
def test_every_pattern_equals_the_oracle(place: FlexPlace, request: pytest.FixtureRequest) -> None:
    """One of each kind of mask is traced as well; the slow test below compiles every pattern."""
    if place.pattern_name not in TRACED_NAMES:
        request.getfixturevalue("untraced")
    qkv = make_qkv(heads=4, kv_heads=2, q_len=place.q_len, k_len=place.k_len)
    problem = make_problem(*qkv, pattern=place.pattern, q_start=place.q_start)
    verdict = TRACED.assess(problem)
    if isinstance(verdict, Refusal):
        assert verdict.reason.startswith("no pair is allowed")
        assert not place.dense().any()
    else:
        assert_equals_the_oracle(qkv, place.pattern, q_start=place.q_start)


@pytest.mark.parametrize("name", BIASES)
def test_the_bias_is_added_after_the_cap_and_hides_where_it_is_minus_infinity(
    name: str, request: pytest.FixtureRequest
) -> None:
    if name not in ("every pair", "one number"):
        request.getfixturevalue("untraced")
    qkv = make_qkv(heads=4, kv_heads=2, q_len=150, k_len=290, gain=3.0)
    bias = torch.randn(BIASES[name], dtype=torch.float64)
    hiding = bias.masked_fill(bias > 0.5, -torch.inf)
    for softcap, added in ((1.5, bias), (None, hiding)):
        assert_equals_the_oracle(qkv, p.CausalWindow(180), bias=added, softcap=softcap)


def test_a_bias_by_distance_is_looked_up_at_the_distance() -> None:
    qkv = make_qkv(heads=4, kv_heads=2, q_len=150, k_len=290)
    options = {"pattern": p.CausalWindow(180) & p.KeySpan(9), "bias": ALiBi(), "q_start": 133}
    found = detail(TRACED, *qkv, **options)
    expected = detail(BACKENDS["reference"], *qkv, **options)
    torch.testing.assert_close(found.output, expected.output)
    torch.testing.assert_close(found.log_sum_exp, expected.log_sum_exp)


LAYOUTS_OF_HEADS = [  # kv_heads, dtype, layout
    (1, torch.float32, "transposed"),
    (3, torch.float32, "sliced"),
    (6, torch.float32, "transposed"),
    (1, torch.float16, "sliced"),
    (3, torch.float16, "transposed"),
    (6, torch.float16, "sliced"),
    (1, torch.bfloat16, "transposed"),
    (3, torch.bfloat16, "sliced"),
    (6, torch.bfloat16, "transposed"),
]


@pytest.mark.parametrize(("kv_heads", "dtype", "layout"), LAYOUTS_OF_HEADS)
def test_head_groups_dtypes_and_layouts_equal_the_oracle(
    kv_heads: int, dtype: torch.dtype, layout: str, request: pytest.FixtureRequest
) -> None:
    if kv_heads != 3 or layout != "sliced":
        request.getfixturevalue("untraced")
    head_dim, v_dim = (3, 1) if dtype == torch.float16 else (20, 37)
    sizes: dict[str, Any] = {"q_len": 40, "k_len": 150, "head_dim": head_dim, "v_dim": v_dim}
    qkv = make_qkv(kv_heads=kv_heads, dtype=dtype, layout=layout, **sizes)
    assert_equals_the_oracle(qkv, p.SlidingWindow(60), scale=-0.3)


FIRST_KEY = 9  # of the calls below
CPU = torch.device("cpu")


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_tiles_are_those_that_torch_finds_by_looking_at_every_pair(place: FlexPlace) -> None:
    q_len = place.q_len
    keys = place.k_len - FIRST_KEY
    allowed = four_axes(place.dense()[..., FIRST_KEY:]).expand(2, 4, -1, -1)
    tiles = tile_map(place.pattern.canonical(), place.grid_from(FIRST_KEY), 2, 4)
    found = block_mask(tiles, q_len, keys, CPU)

    def look(b: Any, h: Any, q: Any, k: Any) -> torch.Tensor:
        return allowed[b, h, q, k]

    expected = create_block_mask(look, 2, 4, q_len, keys, device="cpu")
    for name in ("kv", "full_kv", "q", "full_q"):
        counts = getattr(found, f"{name}_num_blocks")
        expected_counts = getattr(expected, f"{name}_num_blocks")
        assert torch.equal(counts.expand(expected_counts.shape), expected_counts), name
        indices = getattr(found, f"{name}_indices")
        expected_indices = getattr(expected, f"{name}_indices")
        # What stands behind the counted ones is not read.
        read = torch.arange(expected_indices.shape[-1]) < expected_counts[..., None]
        assert torch.equal(indices.expand(expected_indices.shape)[read], expected_indices[read]), (
            name
        )
        assert indices.is_contiguous(), (
            f"{name}: the kernels of the gradients ignore the stride of a row's tiles"
        )
    assert found.shape == (*found.kv_num_blocks.shape[:2], q_len, keys)


def most_runs(allowed: torch.Tensor) -> int:
    """The most runs of allowed keys that a row has."""
    begins = torch.nn.functional.pad(allowed.int(), (1, 0)).diff() > 0
    return int(begins.sum(-1).max())


def pairs_of(mask: Any, q_len: int, k_len: int) -> torch.Tensor:
    """What the function of a block mask says of every pair of 2 batch rows and 4 heads."""
    places = [torch.arange(size) for size in (2, 4, q_len, k_len)]
    return mask.mask_mod(*torch.meshgrid(*places, indexing="ij"))


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_the_pairs_inside_of_tiles_are_those_of_the_pattern(place: FlexPlace) -> None:
    """A band's by its limits, those of patterns with few runs of keys by their ends, and the others by bits."""
    q_len = place.q_len
    keys = place.k_len - FIRST_KEY
    tiles = tile_map(place.pattern, place.grid_from(FIRST_KEY), 2, 4)
    mask = block_mask(tiles, q_len, keys, CPU)
    allowed = place.dense()[..., FIRST_KEY:]
    is_band = place.pattern.band() is not None
    told_by = "limits" if is_band else "runs" if most_runs(allowed) <= 8 else "bits"
    assert (tiles.limits is not None) == is_band
    assert mask.mask_mod.__qualname__ == f"_by_{told_by}.<locals>.allows"
    found = pairs_of(mask, q_len, keys)
    assert torch.equal(found, four_axes(allowed).expand(found.shape))


def test_a_run_of_keys_goes_on_over_full_tiles() -> None:
    pattern = ~p.SlidingWindow(90) | p.KeySpan(0, 5)
    tiles = tile_map(pattern, Grid.whole(300, 1300, 500), 1, 1)
    first_keys, _ = runs_of(tiles.kinds, tiles.bits)
    assert len(first_keys) == 2
    found = pairs_of(block_mask(tiles, 300, 1300, CPU), 300, 1300)
    assert torch.equal(found[0, 0], pattern.dense(300, 1300, q_start=500))


def pairs_of_tiles_with_a_pair(allowed: torch.Tensor) -> int:
    """The pairs of the tiles of 128 queries and keys in which a pair is allowed, counted tile by tile."""
    pairs = 0
    for head in allowed.flatten(0, 1):
        for rows in head.split(128):
            for tile in rows.split(128, dim=1):
                pairs += tile.numel() if tile.any() else 0
    return pairs


@pytest.mark.parametrize("first_key", [0, 130])
@pytest.mark.parametrize("name", PATTERNS)
def test_pairs_of_tiles_are_counted(name: str, first_key: int) -> None:
    pattern = PATTERNS[name].canonical()
    grid = Grid.whole(257, 300)
    grid = grid.block(grid.rows, range(first_key, 300))
    allowed = four_axes(pattern.dense(257, 300)).expand(2, 4, -1, -1)
    expected = pairs_of_tiles_with_a_pair(allowed[..., first_key:])
    assert pairs_of_tiles(pattern, grid, 2, 4) == expected


@pytest.mark.parametrize(
    "names", [("bigbird", "window and global", "fixed"), ("far", "documents"), ("dilated", "sieve")]
)
def test_another_pattern_with_as_many_runs_of_keys_and_another_cap_compile_nothing(
    names: tuple[str, ...],
) -> None:
    qkv = make_qkv(heads=4, kv_heads=2, q_len=300, k_len=300)
    torch._dynamo.reset()
    graphs = torch._dynamo.utils.counters["stats"]
    before = graphs["unique_graphs"]
    for softcap, name in enumerate(names, 5):
        detail(TRACED, *qkv, pattern=PATTERNS[name], softcap=float(softcap))
        assert graphs["unique_graphs"] == before + 1


def test_hidden_keys_and_queries_without_keys_reach_no_result() -> None:
    q, k, v = make_qkv(heads=2, kv_heads=1, q_len=200, k_len=200)
    pattern = Diagonals(back=50, ahead=-10)
    clean = detail(TRACED, q, k, v, pattern=pattern)
    q[:, :, :10] = torch.nan
    k[:, :, 190:] = torch.inf
    v[:, :, 190:] = torch.nan
    found = detail(TRACED, q, k, v, pattern=pattern)
    assert torch.equal(found.output, clean.output)
    assert torch.equal(found.log_sum_exp, clean.log_sum_exp)
    assert not found.output[:, :, :10].any()
    assert (found.log_sum_exp[:, :, :10] == -torch.inf).all()


@pytest.fixture
def kernel_calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of calls of FlexAttention, in whose place zeros are returned."""
    calls: list[dict[str, Any]] = []

    def kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> Any:
        calls.append({"q": q, **options})
        return v.new_zeros(*q.shape[:3], v.shape[3]), AuxOutput()

    monkeypatch.setattr(flex_backend, "_kernel", lambda compiled: kernel)
    return calls


SMALLER_BLOCKS = {"fwd_BLOCK_M": 64, "fwd_BLOCK_N": 64}


@pytest.mark.parametrize(
    ("q_len", "name", "kernel_options"),
    [
        (128, "bigbird", SMALLER_BLOCKS),
        (128, "strided", SMALLER_BLOCKS),
        (128, "window", None),
        (127, "bigbird", {"BACKEND": "TRITON"}),
        (60, "bigbird", None),
    ],
)
def test_a_kernel_that_reads_tables_gets_smaller_blocks(
    q_len: int, name: str, kernel_options: Any, kernel_calls: list[dict[str, Any]]
) -> None:
    qkv = make_qkv(heads=4, kv_heads=2, q_len=q_len, k_len=700)
    detail(TRACED, *qkv, pattern=PATTERNS[name], want=())
    assert [call["kernel_options"] for call in kernel_calls] == [kernel_options]


def test_a_query_without_keys_is_blanked_before_any_gradient_meets_it(
    kernel_calls: list[dict[str, Any]],
) -> None:
    q, k, v = make_qkv(heads=2, kv_heads=1, q_len=200, k_len=200)
    detail(TRACED, q * torch.nan, k, v, pattern=Diagonals(back=50, ahead=-10), want=())
    (call,) = kernel_calls
    is_blanked = call["q"][..., :5].isfinite().all(-1)
    assert is_blanked[:, :, :10].all()
    assert not is_blanked[:, :, 10:].any()


def test_statistics_are_those_of_the_reference() -> None:
    qkv = make_qkv(heads=4, kv_heads=2, q_len=130, k_len=260)
    want = ("entropy", "received", rg.top_keys(3))
    options = {"pattern": PATTERNS["bigbird"], "softcap": 2.0, "want": want}
    found = detail(TRACED, *qkv, **options)
    expected = detail(BACKENDS["reference"], *qkv, **options)
    torch.testing.assert_close(found.entropy, expected.entropy)
    torch.testing.assert_close(found.received, expected.received)
    assert torch.equal(found.top_keys.indices, expected.top_keys.indices)


SIZES_ON_CUDA: dict[str, Any] = {"q_len": 4096, "k_len": 4096, "head_dim": 64, "v_dim": 64}
SIZES_ON_CUDA["dtype"] = torch.float32


def on_cuda(needs_grad: bool = False, **options: Any) -> Problem:
    """A problem as cuda poses it; plans read no tensor, so none is needed there."""
    sizes = {name: options.pop(name, size) for name, size in SIZES_ON_CUDA.items()}
    qkv = make_qkv(batch=1, heads=8, kv_heads=8, **sizes)
    return replace(make_problem(*qkv, **options), device="cuda", needs_grad=needs_grad)


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex_backend, "find_spec", lambda name: name == "triton")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "everything": ({"pattern": None}, "fused needs no compiling"),
    "a causal square": ({"pattern": p.Causal()}, "fused needs no compiling"),
    "a causal square of the last keys": (
        {"pattern": p.Causal() & p.KeySpan(96), "q_len": 4000},
        "fused needs no",
    ),
    "float64": ({"dtype": torch.float64}, "not in float64"),
    "dropout": ({"dropout": 0.1}, "no dropout"),
    "long values": ({"v_dim": 257}, "at most 256 numbers"),
    "positions by row": ({"q_start": torch.tensor([3])}, "q_start is a tensor"),
    "no structure": ({"pattern": p.Where(lambda i, j: i > j)}, "pair by pair"),
    "a learned bias": ({"bias": torch.zeros(8, 1, 1).requires_grad_()}, "gradient of a bias"),
    "no pairs": ({"q_len": 0}, "nothing to compute"),
    "no pair": ({"pattern": p.CausalWindow(3), "q_start": 9000}, "no pair is allowed"),
    "waste, strictly": ({"pattern": p.CausalWindow(8), "strict": True}, "more than twice as many"),
}


@pytest.mark.usefixtures("triton")
@pytest.mark.parametrize("name", REFUSED)
def test_what_it_cannot_do_is_refused_in_words(name: str) -> None:
    options, words = REFUSED[name]
    verdict = Flex().assess(on_cuda(**{"pattern": p.CausalWindow(512), **options}))
    assert isinstance(verdict, Refusal)
    assert words in verdict.reason


@pytest.mark.usefixtures("triton")
@pytest.mark.parametrize(
    "options",
    [
        {"softcap": 20.0},
        {"bias": ALiBi()},
        {"k_len": 5000},
        {"needs_grad": True, "pattern": p.SlidingWindow(9)},
    ],
)
def test_what_fused_does_not_do_at_once_is_offered(options: dict[str, Any]) -> None:
    assert isinstance(Flex().assess(on_cuda(**{"pattern": p.Causal(), **options})), Offer)


def test_other_devices_and_a_missing_triton_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = on_cuda(pattern=p.CausalWindow(512))
    monkeypatch.setattr(flex_backend, "find_spec", lambda name: None)
    assert "triton" in str(Flex().assess(problem))
    assert "without compiling" in str(Flex().assess(replace(problem, device="cpu")))
    assert "no gradients on cpu" in str(
        TRACED.assess(replace(problem, device="cpu", needs_grad=True))
    )


@pytest.mark.usefixtures("triton")
@pytest.mark.parametrize(
    ("options", "takes"),
    [
        ({"pattern": p.Causal(), "softcap": 30.0}, True),
        ({"pattern": p.Causal(), "k_len": 8192, "bias": torch.zeros(8192)}, True),
        ({"pattern": None}, False),
        ({"pattern": p.Causal()}, False),
        ({"pattern": p.Causal() & p.Strided(64)}, False),
    ],
)
def test_a_plan_on_cuda_takes_flex_where_it_saves_work(
    options: dict[str, Any], takes: bool
) -> None:
    plan = make_plan(on_cuda(**options), {**BACKENDS, "flex": Flex()})
    assert (plan.backend == "flex") == takes


def cost_on_cuda(**options: Any) -> Cost:
    offer = Flex().assess(on_cuda(**options))
    assert isinstance(offer, Offer)
    return offer.cost


@pytest.mark.usefixtures("triton")
def test_any_pattern_is_one_call() -> None:
    assert cost_on_cuda(pattern=PATTERNS["bigbird"]).calls == 1


@pytest.mark.usefixtures("triton")
def test_doubling_the_length_doubles_the_cost_of_a_window() -> None:
    once, twice = (
        cost_on_cuda(pattern=p.CausalWindow(512), q_len=length, k_len=length)
        for length in (4096, 8192)
    )
    assert twice.pairs == pytest.approx(2 * once.pairs, rel=0.1)
    assert twice.peak_bytes < 2.5 * once.peak_bytes


@IMPORTING
@pytest.mark.slow
@pytest.mark.parametrize("name", PATTERNS)
def test_kernels_compiled_for_cpu_equal_the_traced_ones(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # torch's kernels for cpu misname sizes
    monkeypatch.setattr(torch._dynamo, "maybe_mark_dynamic", lambda *_: None)
    block_mask.cache_clear()
    torch._dynamo.reset()
    qkv = make_qkv(heads=4, kv_heads=2, q_len=300, k_len=390, head_dim=32, v_dim=32)
    options = {
        "pattern": PATTERNS[name],
        "softcap": 5.0,
        "bias": torch.randn(4, 1, 390),
        "q_start": 60,
        "want": (),
    }
    found, expected = (
        detail(Flex(("cpu",), compiled), *qkv, **options) for compiled in (True, False)
    )
    block_mask.cache_clear()
    torch.testing.assert_close(found.output, expected.output)


@IMPORTING
@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # of PyTorch's compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", PATTERNS)
def test_kernels_compiled_for_cuda_equal_the_reference_with_their_gradients(
    name: str, dtype: torch.dtype
) -> None:
    qkv = make_qkv(heads=4, kv_heads=2, q_len=300, k_len=380, dtype=dtype)
    leaves = [x.cuda().requires_grad_() for x in qkv]

    def results(backend: Any) -> list[torch.Tensor]:
        options = {"pattern": PATTERNS[name], "softcap": 5.0}
        problem = make_problem(*leaves, want=("log_sum_exp",), **options)
        found = make_plan(problem, {backend.name: backend}, backend.name).detail(*leaves)
        lse = found.log_sum_exp
        loss = found.output.float().square().sum() + lse.masked_fill(lse == -torch.inf, 0).sum()
        return [found.output, lse.exp(), *torch.autograd.grad(loss, leaves)]

    bound = 2e-3 if dtype == torch.float32 else 5e-2
    expected = results(BACKENDS["reference"])
    torch.testing.assert_close(results(Flex()), expected, rtol=bound, atol=bound)
