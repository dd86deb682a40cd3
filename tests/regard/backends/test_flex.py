"""The flex backend without a GPU: FlexAttention is not compiled but computed pair by pair.

Its compiled kernels run on CPU in a slow test, without gradients, and on cuda where there is one.
"""

from collections.abc import Iterator
from dataclasses import replace
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
from regard.patterns import Grid
from regard.patterns.bands import Diagonals
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
# Each pattern with two of the lengths, in turn.
SAMPLE = [
    (name, [*LENGTHS][(at + 2 * turn + at // 4) % 4])
    for at, name in enumerate(PATTERNS)
    for turn in range(2)
]
# by limits, runs, bits, head and row
MASKS = (
    "narrow window",
    "strided",
    "sieve",
    "by head",
    "documents by row",
)
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


def told(
    backend: Any, qkv: tuple[torch.Tensor, ...], want: Any = ("log_sum_exp",), **options: Any
) -> Any:
    """What a backend that need not be in the table answers."""
    with torch.no_grad():
        plan = make_plan(
            make_problem(*qkv, want=want, **options), {backend.name: backend}, backend.name
        )
        return plan.detail(*qkv, bias=options.get("bias"))


def assert_equals_the_oracle(
    qkv: tuple[torch.Tensor, ...], pattern: p.Pattern, **options: Any
) -> None:
    q, k, _ = qkv
    found = told(TRACED, qkv, pattern=pattern, **options)
    allowed = pattern.dense(q.shape[2], k.shape[2], q_start=options.get("q_start"))
    bias = options.get("bias")
    scale = options.get("scale", q.shape[3] ** -0.5)
    four = None if bias is None else bias.double()[(None,) * (4 - bias.dim())].numpy()
    wide = [x.double() for x in qkv]
    expected = answer(*wide, allowed, scale=scale, softcap=options.get("softcap"), bias=four)
    budget = Budget.of(*wide, q.dtype, scale=scale, bias=bias)
    assert found.output.dtype == q.dtype
    assert budget.share("output", found.output, expected.output) <= 1
    assert budget.share("log_sum_exp", found.log_sum_exp, expected.log_sum_exp) <= 1


@pytest.mark.parametrize(("name", "lengths"), SAMPLE[::2])
def test_every_pattern_equals_the_oracle(
    name: str, lengths: str, request: pytest.FixtureRequest
) -> None:
    """One of each kind of mask is traced as well; the slow test below compiles every pattern."""
    if name not in MASKS or (name, lengths) != next(one for one in SAMPLE if one[0] == name):
        request.getfixturevalue("untraced")
    q_len, k_len, q_start = LENGTHS[lengths]
    qkv = make_qkv(heads=4, kv_heads=2, q_len=q_len, k_len=k_len)
    problem = make_problem(*qkv, pattern=PATTERNS[name], q_start=q_start)
    if isinstance(refused := TRACED.assess(problem), Refusal):
        assert refused.reason.startswith("no pair is allowed")
        assert not PATTERNS[name].dense(q_len, k_len, q_start=q_start).any()
    else:
        assert_equals_the_oracle(qkv, PATTERNS[name], q_start=q_start)


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
    found, expected = (told(backend, qkv, **options) for backend in (TRACED, BACKENDS["reference"]))
    torch.testing.assert_close(found.output, expected.output)
    torch.testing.assert_close(found.log_sum_exp, expected.log_sum_exp)


@pytest.mark.parametrize(
    ("dtype", "kv_heads", "layout"),
    [
        (dtype, kv_heads, ("transposed", "sliced")[(a + b) % 2])
        for a, dtype in enumerate((torch.float32, torch.float16, torch.bfloat16))
        for b, kv_heads in enumerate((1, 3, 6))
    ],
)
def test_head_groups_dtypes_and_layouts_equal_the_oracle(
    dtype: torch.dtype, kv_heads: int, layout: str, request: pytest.FixtureRequest
) -> None:
    if kv_heads != 3 or layout != "sliced":
        request.getfixturevalue("untraced")
    sizes: dict[str, Any] = {"q_len": 40, "k_len": 150, "head_dim": 20, "v_dim": 37}
    if dtype == torch.float16:
        sizes |= {"head_dim": 3, "v_dim": 1}
    qkv = make_qkv(kv_heads=kv_heads, dtype=dtype, layout=layout, **sizes)
    assert_equals_the_oracle(qkv, p.SlidingWindow(60), scale=-0.3)


@pytest.mark.parametrize(("name", "lengths"), SAMPLE)
def test_tiles_are_those_that_torch_finds_by_looking_at_every_pair(name: str, lengths: str) -> None:
    q_len, k_len, q_start = LENGTHS[lengths]
    pattern = PATTERNS[name].canonical()
    grid = Grid.whole(q_len, k_len, q_start)
    grid = grid.block(grid.rows, range(9, k_len))  # keys do not begin at a whole tile
    allowed = pattern.dense(q_len, k_len, q_start=q_start)[..., 9:]
    allowed = allowed[(None,) * (4 - allowed.dim())].expand(2, 4, -1, -1)
    mine = block_mask(tile_map(pattern, grid, 2, 4), q_len, k_len - 9, torch.device("cpu"))
    look = lambda b, h, q, k: allowed[b, h, q, k]  # noqa: E731
    torchs = create_block_mask(look, 2, 4, q_len, k_len - 9, device="cpu")
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        counts = getattr(mine, name)
        theirs = getattr(torchs, name)
        assert torch.equal(counts.expand(theirs.shape), theirs), name
        indices, others = (
            getattr(mask, name.replace("num_blocks", "indices")) for mask in (mine, torchs)
        )
        chosen = torch.arange(others.shape[-1]) < theirs[..., None]
        assert torch.equal(indices.expand(others.shape)[chosen], others[chosen]), name
        assert indices.is_contiguous(), (
            f"{name}: the kernels of the gradients ignore the stride of a row's tiles"
        )
    assert mine.shape == (*mine.kv_num_blocks.shape[:2], q_len, k_len - 9)


@pytest.mark.parametrize(("name", "lengths"), SAMPLE)
def test_the_pairs_inside_of_tiles_are_those_of_the_pattern(name: str, lengths: str) -> None:
    """A band's by its limits, those of patterns with few runs of keys by their ends, and the others by bits."""
    (q_len, k_len, q_start), pattern = LENGTHS[lengths], PATTERNS[name]
    grid = Grid.whole(q_len, k_len, q_start if q_start is not None else k_len - q_len)
    grid = grid.block(grid.rows, range(9, k_len))  # keys do not begin at a whole tile
    tiles = tile_map(pattern, grid, 2, 4)
    assert (tiles.limits is not None) == (pattern.band() is not None)
    mask = block_mask(tiles, q_len, k_len - 9, torch.device("cpu"))
    allowed = pattern.dense(q_len, k_len, q_start=q_start)[..., 9:]
    runs = torch.nn.functional.pad(allowed.int(), (1, 0)).diff().clamp(min=0).sum(-1).max()
    by = "limits" if tiles.limits is not None else "runs" if runs <= 8 else "bits"
    assert mask.mask_mod.__qualname__ == f"_by_{by}.<locals>.allows"
    places = [torch.arange(size) for size in (2, 4, q_len, k_len - 9)]
    batch, head, query, key = (
        x.view([-1 if at == axis else 1 for at in range(4)]) for axis, x in enumerate(places)
    )
    found = mask.mask_mod(*torch.broadcast_tensors(batch, head, query, key))
    assert torch.equal(found, allowed[(None,) * (4 - allowed.dim())].expand(found.shape))


def test_a_run_of_keys_goes_on_over_full_tiles() -> None:
    pattern = ~p.SlidingWindow(90) | p.KeySpan(0, 5)
    rows = torch.arange(300)
    keys = torch.arange(1300)
    tiles = tile_map(pattern, Grid.whole(300, 1300, 500), 1, 1)
    firsts, _ = runs_of(tiles.kinds, tiles.bits)
    assert len(firsts) == 2
    mask = block_mask(tiles, 300, 1300, torch.device("cpu"))
    found = mask.mask_mod(torch.tensor(0), torch.tensor(0), rows[:, None], keys)
    assert torch.equal(found, pattern.dense(300, 1300, q_start=500))


@pytest.mark.parametrize("first", [0, 130])
@pytest.mark.parametrize("name", PATTERNS)
def test_pairs_are_counted(name: str, first: int) -> None:
    pattern = PATTERNS[name].canonical()
    grid = Grid.whole(257, 300)
    dense = pattern.dense(257, 300)
    dense = dense[(None,) * (4 - dense.dim())].expand(2, 4, -1, -1)[..., first:]
    boxes = torch.nn.functional.pad(dense, (0, -(300 - first) % 128, 0, 127)).unflatten(
        3, (-1, 128)
    )
    # (batch, heads, rows of tiles, columns of tiles)
    seen = boxes.unflatten(2, (3, 128)).any(5).any(3)
    real = torch.tensor([128, 128, 1])[:, None] * torch.tensor(
        [128, 128, 44] if first == 0 else [128, 42]
    )
    assert (
        pairs_of_tiles(pattern, grid.block(grid.rows, range(first, 300)), 2, 4)
        == (seen * real).sum()
    )


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
        told(TRACED, qkv, pattern=PATTERNS[name], softcap=float(softcap))
        assert graphs["unique_graphs"] == before + 1


def test_what_nobody_sees_and_who_sees_nobody_reach_nothing() -> None:
    qkv = make_qkv(heads=2, kv_heads=1, q_len=200, k_len=200)
    pattern = Diagonals(back=50, ahead=-10)
    clean = told(TRACED, qkv, pattern=pattern)
    q, k, v = (x.clone() for x in qkv)
    q[:, :, :10], k[:, :, 190:], v[:, :, 190:] = torch.nan, torch.inf, torch.nan
    found = told(TRACED, (q, k, v), pattern=pattern)
    assert torch.equal(found.output, clean.output)
    assert torch.equal(found.log_sum_exp, clean.log_sum_exp)
    assert not found.output[:, :, :10].any()
    assert (found.log_sum_exp[:, :, :10] == -torch.inf).all()


def test_a_kernel_that_reads_tables_gets_smaller_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    handed: list[Any] = []

    def kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> Any:
        handed.append(options["kernel_options"])
        return v.new_zeros(*q.shape[:3], v.shape[3]), AuxOutput()

    monkeypatch.setattr(flex_backend, "_kernel", lambda compiled: kernel)
    for rows, name in (
        (128, "bigbird"),
        (128, "strided"),
        (128, "window"),
        (127, "bigbird"),
        (60, "bigbird"),
    ):
        told(
            TRACED,
            make_qkv(heads=4, kv_heads=2, q_len=rows, k_len=700),
            pattern=PATTERNS[name],
            want=(),
        )
    smaller = {"fwd_BLOCK_M": 64, "fwd_BLOCK_N": 64}
    assert handed == [smaller, smaller, None, {"BACKEND": "TRITON"}, None]


def test_a_query_that_sees_nobody_is_blanked_before_any_gradient_meets_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handed: list[torch.Tensor] = []

    def kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> Any:
        handed.append(q)
        return v.new_zeros(*q.shape[:3], v.shape[3]), AuxOutput()

    monkeypatch.setattr(flex_backend, "_kernel", lambda compiled: kernel)
    q, k, v = make_qkv(heads=2, kv_heads=1, q_len=200, k_len=200)
    told(TRACED, (q * torch.nan, k, v), pattern=Diagonals(back=50, ahead=-10), want=())
    lonely = handed[0][..., :5].isfinite().all(-1)
    assert lonely[:, :, :10].all()
    assert not lonely[:, :, 10:].any()


def test_statistics_are_those_of_the_reference() -> None:
    qkv = make_qkv(heads=4, kv_heads=2, q_len=130, k_len=260)
    options = {
        "pattern": PATTERNS["bigbird"],
        "softcap": 2.0,
        "want": ("entropy", "received", rg.top_keys(3)),
    }
    found, expected = (told(backend, qkv, **options) for backend in (TRACED, BACKENDS["reference"]))
    torch.testing.assert_close(found.entropy, expected.entropy)
    torch.testing.assert_close(found.received, expected.received)
    assert torch.equal(found.top_keys.indices, expected.top_keys.indices)


def on_cuda(**options: Any) -> Problem:
    """A problem as cuda poses it; plans read no tensor, so none is needed there."""
    needs_grad = options.pop("needs_grad", False)
    sizes: dict[str, Any] = {
        "q_len": 4096,
        "k_len": 4096,
        "head_dim": 64,
        "v_dim": 64,
        "dtype": torch.float32,
    }
    sizes |= {name: options.pop(name) for name in tuple(sizes) if name in options}
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
    refused = Flex().assess(on_cuda(**{"pattern": p.CausalWindow(512), **options}))
    assert isinstance(refused, Refusal)
    assert words in refused.reason


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


@pytest.mark.usefixtures("triton")
def test_any_pattern_is_one_call_and_doubling_the_length_doubles_the_cost_of_a_window() -> None:
    offer = Flex().assess(on_cuda(pattern=PATTERNS["bigbird"]))
    assert isinstance(offer, Offer)
    assert offer.cost.calls == 1
    offers = [
        Flex().assess(on_cuda(pattern=p.CausalWindow(512), q_len=n, k_len=n)) for n in (4096, 8192)
    ]
    costs: list[Cost] = [offer.cost for offer in offers if isinstance(offer, Offer)]
    assert costs[1].pairs == pytest.approx(2 * costs[0].pairs, rel=0.1)
    assert costs[1].peak_bytes < 2.5 * costs[0].peak_bytes


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
    found, expected = (told(Flex(("cpu",), compiled), qkv, **options) for compiled in (True, False))
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
    answers = []
    for backend in (Flex(), BACKENDS["reference"]):
        qkv = [x.cuda() for x in make_qkv(heads=4, kv_heads=2, q_len=300, k_len=380, dtype=dtype)]
        q, k, v = qkv = [x.requires_grad_() for x in qkv]
        problem = make_problem(*qkv, want=("log_sum_exp",), pattern=PATTERNS[name], softcap=5.0)
        found = make_plan(problem, {backend.name: backend}, backend.name).detail(q, k, v)
        lse = found.log_sum_exp
        loss = found.output.float().square().sum() + lse.masked_fill(lse == -torch.inf, 0).sum()
        answers.append([found.output, lse.exp(), *torch.autograd.grad(loss, qkv)])
    bound = 2e-3 if dtype == torch.float32 else 5e-2
    for found, expected in zip(*answers, strict=True):
        torch.testing.assert_close(found, expected, rtol=bound, atol=bound)
