"""Values and gradients of the kernel against formulas in float64, at sizes beyond a panel, a chunk and a span."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F

import regard as rg
from regard import patterns as p
from regard.backends.native.library import SPAN
from regard.core.backend import Refusal
from regard.core.call import Call
from regard.core.hidden import grid_of_call, prepare
from regard.core.tensors import Stored
from regard.functional.compiled import traced_attention
from regard.functional.operation import OperationOptions, OperationTensors
from regard.functional.plain import plain_attention
from regard.testing import Budget, answer, make_qkv

from .calls import AVX2, BEST

PATTERNS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("full", {}),
    ("causal", {"scale": -0.37}),
    ("causal & causal_window(29)", {"softcap": 2.5}),
    ("sliding_window(58) | global_tokens(1, 40)", {}),
    ("strided(13) & causal", {"scale": -0.37}),
    ("key_span(2, 60)", {"softcap": 2.5}),
)
LAYOUTS = ((1, 1), (2, 2), (6, 3), (6, 1))  # heads, kv_heads


class CallSizes(NamedTuple):
    q_len: int
    k_len: int
    head_dim: int
    v_dim: int


SIZES = (
    CallSizes(3, 131, 17, 5),
    CallSizes(131, 131, 5, 13),
    CallSizes(257, 67, 31, 37),
    CallSizes(199, 401, 67, 61),
    CallSizes(1, SPAN + 1009, 13, 7),
)


@dataclass(frozen=True)
class CallsOfSizes:
    """Sizes and dtype of calls, which are made with every second pattern."""

    sizes: CallSizes
    heads: int
    kv_heads: int
    dtype: torch.dtype
    first_pattern: int

    def tensors(self, seed: int) -> tuple[torch.Tensor, ...]:
        sizes = {"heads": self.heads, "kv_heads": self.kv_heads, **self.sizes._asdict()}
        return make_qkv(batch=2, **sizes, dtype=self.dtype, seed=seed)

    def __str__(self) -> str:
        sizes = "-".join(map(str, self.sizes))
        return f"{sizes}, {self.heads} heads over {self.kv_heads}, {self.dtype}"


def cases() -> list[CallsOfSizes]:
    """Each size with three of the layouts of heads, one of them in bfloat16."""
    made = []
    for number, sizes in enumerate(SIZES):
        for turn, dtype in enumerate((torch.float32, torch.float32, torch.bfloat16)):
            layout = (number + turn) % len(LAYOUTS)
            first_pattern = (number + layout) % 2
            made.append(CallsOfSizes(sizes, *LAYOUTS[layout], dtype, first_pattern))
    return made


@pytest.mark.parametrize("case", cases(), ids=str)
def test_values_and_gradients_equal_the_formula(native, case):
    """With the best instructions of this processor, and with AVX2."""
    for seed, (pattern, options) in [*enumerate(PATTERNS)][case.first_pattern :: 2]:
        q, k, v = case.tensors(seed)
        grad_output = torch.randn(2, case.heads, case.sizes.q_len, case.sizes.v_dim)
        grad_output = grad_output.to(case.dtype)
        scale = options.get("scale", case.sizes.head_dim**-0.5)
        wide = [x.double() for x in (q, k, v)]
        expected = answer(
            *wide,
            p.parse(pattern).dense(case.sizes.q_len, case.sizes.k_len),
            scale=scale,
            softcap=options.get("softcap"),
            grad_output=grad_output.double(),
        )
        budget = Budget.of(
            *wide, case.dtype, scale=scale, grad_output=grad_output.double(), answer=expected
        )
        for instructions in (BEST, AVX2):
            native.handle.rg_use_instructions(instructions)
            leaves = [x.clone().requires_grad_() for x in (q, k, v)]
            detail = rg.attention_detail(*leaves, pattern=pattern, backend="native", **options)
            dq, dk, dv = torch.autograd.grad(detail.output, leaves, grad_output)
            found = {"output": detail.output, "log_sum_exp": detail.log_sum_exp}
            found |= {"dq": dq, "dk": dk, "dv": dv}
            shares = {
                name: budget.share(name, x, getattr(expected, name)) for name, x in found.items()
            }
            assert max(shares.values()) <= 1, (instructions, pattern, shares)


class Latent(NamedTuple):
    """Sizes of a call whose values are the first numbers of its keys."""

    batch: int
    heads: int
    q_len: int
    k_len: int
    head_dim: int
    v_dim: int


LATENTS = {
    "DeepSeek, 16 heads": Latent(2, 16, 1, 331, 576, 512),
    "DeepSeek, 128 heads": Latent(1, 128, 1, 331, 576, 512),
    "several queries": Latent(2, 6, 5, 271, 67, 61),
    "values that are the keys": Latent(2, 30, 1, 571, 67, 67),
}
BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float64: 1e-12}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("DeepSeek, 16 heads", torch.float64),
        ("DeepSeek, 16 heads", torch.float32),
        ("DeepSeek, 128 heads", torch.bfloat16),
        ("several queries", torch.float32),
        ("several queries", torch.bfloat16),
        ("several queries", torch.float64),
        ("values that are the keys", torch.float32),
        ("values that are the keys", torch.bfloat16),
        ("values that are the keys", torch.float64),
    ],
)
def test_values_in_the_keys_equal_the_formula(native, name, dtype):
    """Latent attention: one key/value head, whose values are the first numbers of its keys."""
    *sizes, v_dim = LATENTS[name]
    batch, heads, q_len, k_len, head_dim = sizes
    q = torch.randn(batch, heads, q_len, head_dim).to(dtype)
    k = torch.randn(batch, 1, k_len, head_dim).to(dtype)
    grad_output = torch.randn(batch, heads, q_len, v_dim).to(dtype)

    def results(q: torch.Tensor, k: torch.Tensor, backend: str) -> list[torch.Tensor]:
        q, k = (x.clone().requires_grad_() for x in (q, k))
        output = rg.attention(q, k, k[..., :v_dim], pattern="causal", backend=backend)
        gradients = torch.autograd.grad(output, (q, k), grad_output.to(output.dtype))
        return [x.double() for x in (output, *gradients)]

    exact = results(q.double(), k.double(), "reference")
    bound = BOUNDS[dtype]
    for instructions in (BEST, AVX2):
        native.handle.rg_use_instructions(instructions)
        torch.testing.assert_close(results(q, k, "native"), exact, rtol=bound, atol=bound)


@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (8, 8), (8, 1)])
def test_one_query_of_values_that_fill_the_registers_and_more(heads, kv_heads, dtype):
    sizes = {"q_len": 41, "k_len": 307, "head_dim": 64, "v_dim": 208}
    q, k, v = make_qkv(batch=2, heads=heads, kv_heads=kv_heads, **sizes, dtype=dtype)
    last = q[:, :, -1:]
    alone = rg.attention(last, k, v, backend="native", pattern="causal")
    among_others = rg.attention(q, k, v, backend="native", pattern="causal")[:, :, -1:]
    assert torch.equal(alone, among_others)
    exact = rg.attention(*(x.double() for x in (last, k, v)), backend="reference")
    rounding = 2**-7 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(alone.double(), exact, rtol=rounding, atol=rounding)


LENGTHS_NEAR_TILES = (1, 2, 11, 12, 13, 31, 32, 33, 127, 128, 129, 191, 192, 193)
ONE_HEAD = {"batch": 1, "heads": 1, "kv_heads": 1}


def assert_equals_reference(qkv: tuple[torch.Tensor, ...], **options: Any) -> None:
    found = rg.attention(*qkv, backend="native", **options)
    expected = rg.attention(*qkv, backend="reference", **options)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize("pattern", ["causal", "sliding_window(6)", "full"])
def test_lengths_around_the_sizes_of_tiles_equal_the_reference(pattern):
    for length in LENGTHS_NEAR_TILES:
        qkv = make_qkv(heads=2, kv_heads=1, q_len=length, k_len=length)
        assert_equals_reference(qkv, pattern=pattern)


@pytest.mark.usefixtures("instructions")
def test_queries_whose_keys_end_at_any_lane_of_a_register_equal_the_reference():
    qkv = make_qkv(**ONE_HEAD, q_len=8, k_len=400, head_dim=64)
    for start in range(290, 306):
        assert_equals_reference(qkv, pattern="causal", q_start=start)


@pytest.mark.usefixtures("instructions")
def test_the_gradient_of_a_bias_by_distance_equals_that_of_the_reference():
    qkv = make_qkv(batch=3, heads=1, kv_heads=1, q_len=7, k_len=9)
    bias = rg.bias.T5Relative(1, buckets=8, max_distance=11)

    def results(backend: str) -> list[torch.Tensor]:
        output = rg.attention(*qkv, bias=bias, backend=backend)
        return [output, *torch.autograd.grad(output.square().sum(), [*bias.parameters()])]

    torch.testing.assert_close(results("native"), results("reference"), rtol=1e-4, atol=1e-4)


def int8_vectors(*shape: int) -> tuple[Stored, torch.Tensor]:
    """Stored vectors whose scales all differ, and what they stand for, in float64."""
    numbers = torch.randint(-127, 128, (*shape[:3], 2 * shape[3]), dtype=torch.int8)
    numbers = numbers[..., : shape[3]]  # with a gap behind each vector
    scales = torch.rand(shape[0], shape[2], shape[1], 1).transpose(1, 2) / 50
    return Stored(numbers, scales), numbers.double() * scales.double()


@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize("q_len", [1, 3, 29])
def test_an_int8_vector_has_the_scale_of_its_own_batch_row_head_and_position(q_len):
    for turn in range(4):  # a step of a kept plan computes the later calls of few queries
        q = torch.randn(3, 6, q_len, 13)
        k, wide_k = int8_vectors(3, 2, 37 + turn, 13)
        v, wide_v = int8_vectors(3, 2, 37 + turn, 11)
        allowed = p.Causal().dense(q_len, 37 + turn)
        expected = answer(q, wide_k, wide_v, allowed, scale=13**-0.5).output
        with torch.no_grad():
            found = rg.attention(q, k, v, pattern="causal", backend="native")
        torch.testing.assert_close(found.double(), torch.from_numpy(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("instructions")
def test_a_precise_call_is_that_of_float32_numbers_rounded_once():
    """Bit for bit; its mean errors are smaller."""
    sizes = {"q_len": 67, "k_len": 131, "head_dim": 37, "v_dim": 29}
    qkv = make_qkv(batch=2, heads=6, kv_heads=2, **sizes, dtype=torch.bfloat16)
    grad_output = torch.randn(2, 6, 67, 29).bfloat16()

    def results(dtype: torch.dtype, **options: Any) -> list[torch.Tensor]:
        leaves = [x.to(dtype).requires_grad_() for x in qkv]
        output = rg.attention(*leaves, pattern="causal", softcap=3.0, **options)
        return [output.detach(), *torch.autograd.grad(output, leaves, grad_output.to(dtype))]

    exact = results(torch.float64, backend="reference")
    usual = results(torch.bfloat16, backend="native")
    precise = results(torch.bfloat16, backend="native", precise=True)
    wide = results(torch.float32, backend="native")
    for number, expected in enumerate(exact):
        assert torch.equal(precise[number], wide[number].bfloat16())
        error = (precise[number] - expected).abs().mean()
        assert error < 0.9 * (usual[number] - expected).abs().mean()


@pytest.mark.usefixtures("instructions")
def test_a_precise_call_has_the_same_bits_in_a_graph_in_steps_and_in_a_layer():
    sizes = {"q_len": 67, "k_len": 131, "head_dim": 37, "v_dim": 29}
    q, k, v = make_qkv(batch=2, heads=6, kv_heads=2, **sizes, dtype=torch.bfloat16)
    options = {"pattern": "causal", "precise": True}
    whole = rg.attention(q, k, v, **options)
    assert torch.equal(traced_attention(Call(q, k, v, **options)), whole)
    for row in (64, 65, 66):  # the third one is a step of a kept plan
        query = slice(row, row + 1)
        keys = slice(131 - 66 + row)
        step = rg.attention(q[:1, :, query], k[:1, :, keys], v[:1, :, keys], **options)
        assert torch.equal(step, whole[:1, :, query])

    layer = rg.MultiHeadAttention(24, 2, precise=True).bfloat16()
    x = torch.randn(2, 9, 24).bfloat16()
    projections = (layer.to_q, layer.to_k, layer.to_v)
    heads = [project(x).unflatten(-1, (2, 12)).transpose(1, 2).float() for project in projections]
    output = rg.attention(*heads).bfloat16()
    assert torch.equal(layer(x), layer.to_output(output.transpose(1, 2).flatten(2)))


PRECISE_PATTERNS = {
    "causal": "causal",
    "spans": p.KeySpan([2, 0], [11, 7]),
    "global": "global_tokens(0, 5) & causal",
    "keys": p.ChosenKeys(torch.randint(0, 13, (2, 1, 13, 5))),
    "blocks": p.ChosenBlocks(torch.randint(0, 3, (2, 6, 3, 2)), 5, 5),
}


@pytest.mark.each_value(pairs=[("dtype", "name"), ("want", "learning")])
@pytest.mark.parametrize("learning", [False, True])
@pytest.mark.parametrize("want", [(), ("log_sum_exp", "entropy", "weights")])
@pytest.mark.parametrize("sink", [None, torch.linspace(-1, 2, 6)])
@pytest.mark.parametrize("name", PRECISE_PATTERNS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_precise_call_is_rounded_once_with_sinks_statistics_and_lists_too(
    dtype, name, sink, want, learning
):
    sizes = {"q_len": 13, "k_len": 13, "head_dim": 37, "v_dim": 64}
    qkv = make_qkv(batch=2, heads=6, kv_heads=2, **sizes, dtype=dtype)
    options = {"pattern": PRECISE_PATTERNS[name], "sink": sink, "backend": "native", "want": want}

    def results(kind: torch.dtype, precise: bool) -> list[torch.Tensor]:
        leaves = [x.to(kind).requires_grad_(learning) for x in qkv]
        detail = rg.attention_detail(*leaves, precise=precise, **options)
        found = [detail.output, *(getattr(detail, statistic) for statistic in want)]
        if learning:
            found += torch.autograd.grad(detail.output.float().sum(), leaves)
        return found

    for once, wide in zip(results(dtype, True), results(torch.float32, False), strict=True):
        assert torch.equal(once, wide.to(once.dtype))


@pytest.mark.parametrize(
    ("dtype", "precise"),
    [(torch.bfloat16, True), (torch.float16, True), (torch.float16, False)],
)
def test_a_precise_step_with_a_sink_is_rounded_once(dtype, precise):
    """float16 is computed so without `precise` as well."""
    q, k, v = make_qkv(batch=1, heads=6, kv_heads=2, q_len=13, k_len=13, head_dim=64, dtype=dtype)
    options = {"pattern": "causal", "sink": torch.linspace(-1, 2, 6), "backend": "native"}
    whole = rg.attention(q.float(), k.float(), v.float(), **options).to(dtype)
    for row in range(13):  # a kept plan computes all but the first ones
        query = slice(row, row + 1)
        keys = slice(row + 1)
        tensors = q[:, :, query], k[:, :, keys], v[:, :, keys]
        step = rg.attention(*tensors, precise=precise, **options)
        assert torch.equal(step, whole[:, :, query])


def test_what_would_round_the_weights_of_a_precise_call_refuses_it():
    qkv = make_qkv(dtype=torch.bfloat16)
    plan = rg.plan_attention(*qkv, precise=True)
    refusing = {name for name, verdict in plan.others if isinstance(verdict, Refusal)}
    assert {plan.backend, *dict(plan.others)} - refusing == {"native", "reference"}
    words = r"precise=True, and it may round weights to torch.bfloat16"
    with pytest.raises(rg.UnsupportedError, match=words):
        rg.attention(*qkv, precise=True, backend="fused")
    with pytest.raises(rg.UnsupportedError, match=r"linear_transformer.* has none"):
        rg.attention(*qkv, precise=True, mechanism="linear_transformer")
    with pytest.raises(rg.ArgumentError, match="precise"):
        rg.attention(*qkv, precise=1)
    wide = [x.float() for x in qkv]
    rg.attention(*wide, precise=True, backend="fused")  # it rounds no weight of float32


def test_a_precise_call_of_an_exported_program_is_rounded_once():
    q, k, v = (torch.randn(2, heads, 37, 32).bfloat16() for heads in (4, 2, 2))
    tensors = OperationTensors(q, k, v, *[None] * 7)
    options = OperationOptions(
        pattern="full",
        mechanism=None,
        names=(),
        first=None,
        lowest=None,
        softcap=None,
        scale=None,
        dropout=0.0,
        strict=False,
        backend="auto",
        learns=(),
        precise=True,
    )
    found = plain_attention(tensors, options)
    k, v = (x.repeat_interleave(2, 1).float() for x in (k, v))
    assert torch.equal(found, F.scaled_dot_product_attention(q.float(), k, v).bfloat16())


def is_sound(q, k, v) -> bool | None:
    """What the kernel says of its own output, before `Plan` acts on it."""
    plan = rg.plan_attention(q, k, v, pattern="causal", backend="native")
    grid = grid_of_call(plan.problem, plan.keys, None, q.device)
    return plan._offer.run(prepare(plan.problem, grid, Call(q, k, v))).sound


@pytest.mark.each_value(pairs=[("q_len", "v_dim", "dtype"), ("dtype", "learns")])
@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("q_len", "k_len", "v_dim"), [(1, 40, 64), (1, 40, 37), (33, 40, 37), (150, 2 * SPAN, 5)]
)
def test_the_kernel_says_whether_its_output_is_finite(q_len, k_len, v_dim, dtype, learns):
    sizes = {"q_len": q_len, "k_len": k_len, "v_dim": v_dim}
    q, k, v = make_qkv(**sizes, dtype=dtype, requires_grad=learns)
    assert is_sound(q, k, v) is True
    for column in {0, v_dim // 2, v_dim - 1}:
        for filling in (torch.nan, torch.inf):
            changed = v.detach().clone()
            changed[-1, -1, 3, column] = filling
            assert is_sound(q, k, changed) is False
    assert is_sound(q, k, v) is True  # a call does not inherit what the one before found
