"""Values and gradients of the kernel against formulas in float64, at sizes beyond a panel, a chunk and a span."""

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
from regard.functional.plain import plain_attention
from regard.layers.caches.rounding import rounded
from regard.testing import Budget, answer, make_qkv

LAYOUTS = ((1, 1), (2, 2), (6, 3), (6, 1))
SIZES = (
    (3, 131, 17, 5),
    (131, 131, 5, 13),
    (257, 67, 31, 37),
    (199, 401, 67, 61),
    (1, SPAN + 1009, 13, 7),
)


PATTERNS = (
    "full",
    "causal",
    "causal & causal_window(29)",
    "sliding_window(58) | global_tokens(1, 40)",
    "strided(13) & causal",
    "key_span(2, 60)",
)


@pytest.mark.parametrize(
    ("sizes", "heads", "dtype"),
    [
        (one, LAYOUTS[(at + turn) % 4], torch.bfloat16 if turn == 2 else torch.float32)
        for at, one in enumerate(SIZES)
        for turn in (0, 1, 2)
    ],
    ids=str,
)
def test_values_and_gradients_equal_the_formula(native, heads, sizes, dtype):
    """With the best instructions of this processor, and with AVX2; each size with three of the patterns."""
    (q_len, k_len, head_dim, v_dim), (count, kv_heads) = sizes, heads
    names = {"q_len": q_len, "k_len": k_len, "head_dim": head_dim, "v_dim": v_dim}
    turn = SIZES.index(sizes) + LAYOUTS.index(heads)
    for number, text in [*enumerate(PATTERNS)][turn % 2 :: 2]:
        allowed = rg.patterns.parse(text).dense(q_len, k_len).numpy()
        q, k, v = make_qkv(
            batch=2, heads=count, kv_heads=kv_heads, **names, dtype=dtype, seed=number
        )
        options = ({}, {"scale": -0.37}, {"softcap": 2.5})[number % 3]
        grad = torch.randn(2, count, q_len, v_dim).to(dtype)
        scale = options.get("scale", head_dim**-0.5)
        numbers = [x.double() for x in (q, k, v)]
        expected = answer(
            *(x.numpy() for x in numbers),
            allowed,
            scale=scale,
            softcap=options.get("softcap"),
            grad_output=grad.double().numpy(),
        )
        budget = Budget.of(*numbers, dtype, scale=scale, grad_output=grad.double(), answer=expected)
        for instructions in (0, 2):
            native.handle.rg_use_instructions(instructions)
            leaves = [x.clone().requires_grad_() for x in (q, k, v)]
            detail = rg.attention_detail(*leaves, pattern=text, backend="native", **options)
            detail.output.backward(grad)
            found = {"output": detail.output, "log_sum_exp": detail.log_sum_exp}
            found |= dict(zip(("dq", "dk", "dv"), (x.grad for x in leaves), strict=True))
            errors = {
                name: budget.share(name, x, getattr(expected, name)) for name, x in found.items()
            }
            assert max(errors.values()) <= 1, (instructions, text, errors)


@pytest.mark.parametrize(
    ("heads", "head_dim", "v_dim", "dtype"),
    [(16, 576, 512, torch.float64), (16, 576, 512, torch.float32), (128, 576, 512, torch.bfloat16)]
    + [
        (heads, 67, v_dim, dtype)
        for heads, v_dim in ((6, 61), (30, 67))
        for dtype in (torch.float32, torch.bfloat16, torch.float64)
    ],
    ids=str,
)
def test_values_in_the_keys_equal_the_formula(native, dtype, heads, head_dim, v_dim):
    """Latent attention: one key/value head, whose values are the first numbers of its keys."""
    batch, q_len, k_len = {128: (1, 1, 331), 16: (2, 1, 331), 6: (2, 5, 271), 30: (2, 1, 571)}[
        heads
    ]
    q, k, _ = make_qkv(
        batch=batch,
        heads=heads,
        kv_heads=1,
        q_len=q_len,
        k_len=k_len,
        head_dim=head_dim,
        dtype=dtype,
    )
    grad = torch.randn(batch, heads, q_len, v_dim).to(dtype)

    def results(q: torch.Tensor, k: torch.Tensor, backend: str) -> tuple[torch.Tensor, ...]:
        q, k = (x.clone().requires_grad_() for x in (q, k))
        output = rg.attention(q, k, k[..., :v_dim], pattern="causal", backend=backend)
        return output, *torch.autograd.grad(output, (q, k), grad.to(output.dtype))

    exact = results(q.double(), k.double(), "reference")
    for instructions in (0, 2):
        native.handle.rg_use_instructions(instructions)
        for found, expected in zip(results(q, k, "native"), exact, strict=True):
            bound = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float64: 1e-12}[dtype]
            torch.testing.assert_close(found.double(), expected, rtol=bound, atol=bound)


@pytest.mark.parametrize("instructions", [0, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (8, 8), (8, 1)])
def test_one_query_of_values_that_fill_the_registers_and_more(
    native, heads, kv_heads, dtype, instructions
):
    native.handle.rg_use_instructions(instructions)
    sizes = {"q_len": 41, "k_len": 307, "head_dim": 64, "v_dim": 208}
    q, k, v = make_qkv(batch=2, heads=heads, kv_heads=kv_heads, **sizes, dtype=dtype)
    one, many = (
        rg.attention(x, k, v, backend="native", pattern="causal")[:, :, -1:]
        for x in (q[:, :, -1:], q)
    )
    assert torch.equal(one, many)
    exact = rg.attention(*(x.double() for x in (q[:, :, -1:], k, v)), backend="reference")
    rounding = 2**-7 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(one.double(), exact, rtol=rounding, atol=rounding)


# lengths around the sizes of tiles
TILES = (
    1,
    2,
    11,
    12,
    13,
    31,
    32,
    33,
    127,
    128,
    129,
    191,
    192,
    193,
)
ONE_HEAD = {"batch": 1, "heads": 1, "kv_heads": 1}
CALLS = [
    *(
        ({"heads": 2, "kv_heads": 1, "q_len": n, "k_len": n}, {"pattern": text})
        for n in TILES
        for text in ("causal", "sliding_window(6)", "full")
    ),
    *(
        (
            ONE_HEAD | {"q_len": 8, "k_len": 400, "head_dim": 64},
            {"pattern": "causal", "q_start": start},
        )
        for start in range(290, 306)
    ),  # queries of a step that end at different registers
    (
        ONE_HEAD | {"batch": 3, "q_len": 7, "k_len": 9},
        {"bias": rg.bias.T5Relative(1, buckets=8, max_distance=11)},
    ),
    (
        ONE_HEAD | {"heads": 3, "q_len": 1, "k_len": 40, "head_dim": 8, "v_dim": 8},
        {"stored": torch.int8},
    ),
]


@pytest.mark.parametrize("instructions", [0, 2])
def test_other_sizes_equal_the_reference(native, instructions):
    native.handle.rg_use_instructions(instructions)
    for sizes, options in CALLS:
        (q, *kept), given = make_qkv(**sizes, dtype=torch.float32), dict(options)
        if dtype := given.pop("stored", None):
            kept = [Stored(*rounded("x", x, dtype)) for x in kept]
        learning = [*given["bias"].parameters()] if "bias" in given else []
        answers = []
        for name in ("native", "reference"):
            output = rg.attention(q, *kept, backend=name, **given)
            answers.append(
                [
                    output,
                    *(torch.autograd.grad(output.square().sum(), learning) if learning else ()),
                ]
            )
        torch.testing.assert_close(
            *answers, rtol=1e-4 if learning else 1e-5, atol=1e-4 if learning else 1e-5
        )


@pytest.mark.parametrize("instructions", [0, 2])
def test_a_precise_call_is_that_of_float32_numbers_rounded_once(native, instructions):
    """Bit for bit, at once and in steps, in a layer and in a graph; its mean errors are smaller."""
    native.handle.rg_use_instructions(instructions)
    sizes = {"q_len": 67, "k_len": 131, "head_dim": 37, "v_dim": 29}
    q, k, v = make_qkv(batch=2, heads=6, kv_heads=2, **sizes, dtype=torch.bfloat16)
    grad = torch.randn(2, 6, 67, 29).bfloat16()

    def results(dtype: torch.dtype, **options) -> tuple[torch.Tensor, ...]:
        leaves = [x.to(dtype).requires_grad_() for x in (q, k, v)]
        output = rg.attention(*leaves, pattern="causal", softcap=3.0, **options)
        return output.detach(), *torch.autograd.grad(output, leaves, grad.to(dtype))

    exact = results(torch.float64, backend="reference")
    usual, precise = (
        results(torch.bfloat16, backend="native", precise=one) for one in (False, True)
    )
    for one, less, wide, right in zip(
        precise, usual, results(torch.float32, backend="native"), exact, strict=True
    ):
        assert torch.equal(one, wide.bfloat16())
        assert (one - right).abs().mean() < 0.9 * (less - right).abs().mean()
    whole = rg.attention(q, k, v, pattern="causal", precise=True)
    call = Call(q, k, v, pattern="causal", precise=True)
    assert torch.equal(traced_attention(call), whole)
    for row in (64, 65, 66):  # the third one is a step of a kept plan
        keys = slice(131 - 66 + row)
        step = rg.attention(
            q[:1, :, row : row + 1], k[:1, :, keys], v[:1, :, keys], pattern="causal", precise=True
        )
        assert torch.equal(step, whole[:1, :, row : row + 1])
    layer = rg.MultiHeadAttention(24, 2, precise=True).bfloat16()
    x = torch.randn(2, 9, 24).bfloat16()
    q, k, v = (
        to(x).unflatten(-1, (2, 12)).transpose(1, 2) for to in (layer.to_q, layer.to_k, layer.to_v)
    )
    heads = rg.attention(*(one.float() for one in (q, k, v))).bfloat16()
    assert torch.equal(layer(x), layer.to_output(heads.transpose(1, 2).flatten(2)))


ROUNDED_ONCE = {
    "causal": "causal",
    "spans": p.KeySpan([2, 0], [11, 7]),
    "global": "global_tokens(0, 5) & causal",
    "keys": p.ChosenKeys(torch.randint(0, 13, (2, 1, 13, 5))),
    "blocks": p.ChosenBlocks(torch.randint(0, 3, (2, 6, 3, 2)), 5, 5),
}


@pytest.mark.parametrize("learning", [False, True])
@pytest.mark.parametrize("want", [(), ("log_sum_exp", "entropy", "weights")])
@pytest.mark.parametrize("sink", [None, torch.linspace(-1, 2, 6)])
@pytest.mark.parametrize("name", ROUNDED_ONCE)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_precise_call_is_rounded_once_with_sinks_statistics_and_lists_too(
    dtype, name, sink, want, learning
):
    given = make_qkv(
        batch=2, heads=6, kv_heads=2, q_len=13, k_len=13, head_dim=37, v_dim=64, dtype=dtype
    )

    def results(kind: torch.dtype, precise: bool) -> list[torch.Tensor]:
        leaves = [x.to(kind).requires_grad_(learning) for x in given]
        options = {"pattern": ROUNDED_ONCE[name], "sink": sink, "backend": "native"}
        detail = rg.attention_detail(*leaves, want=want, precise=precise, **options)
        found = [detail.output, *(getattr(detail, one) for one in want)]
        if learning:
            found += torch.autograd.grad(detail.output.float().sum(), leaves)
        return found

    for once, wide in zip(results(dtype, True), results(torch.float32, False), strict=True):
        assert torch.equal(once, wide.to(once.dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_precise_step_with_a_sink_is_rounded_once(dtype):
    """float16 is computed so without `precise` as well."""
    q, k, v = make_qkv(batch=1, heads=6, kv_heads=2, q_len=13, k_len=13, head_dim=64, dtype=dtype)
    sink = torch.linspace(-1, 2, 6)
    options = {"pattern": "causal", "sink": sink, "backend": "native"}
    whole = rg.attention(q.float(), k.float(), v.float(), **options).to(dtype)
    for precise in (True, *([False] if dtype == torch.float16 else [])):
        for row in range(13):  # a kept plan computes all but the first ones
            keys = slice(row + 1)
            tensors = q[:, :, row : row + 1], k[:, :, keys], v[:, :, keys]
            step = rg.attention(*tensors, precise=precise, **options)
            assert torch.equal(step, whole[:, :, row : row + 1])


def test_what_would_round_the_weights_of_a_precise_call_refuses_it():
    q, k, v = make_qkv(dtype=torch.bfloat16)
    plan = rg.plan_attention(q, k, v, precise=True)
    computing = {name for name, verdict in plan.others if not isinstance(verdict, Refusal)}
    assert {plan.backend, *computing} == {"native", "reference"}
    with pytest.raises(
        rg.UnsupportedError, match=r"precise=True, and it may round weights to torch.bfloat16"
    ):
        rg.attention(q, k, v, precise=True, backend="fused")
    with pytest.raises(rg.UnsupportedError, match=r"linear_transformer.* has none"):
        rg.attention(q, k, v, precise=True, mechanism="linear_transformer")
    with pytest.raises(rg.ArgumentError, match="precise"):
        rg.attention(q, k, v, precise=1)
    # it rounds nothing here
    rg.attention(*(x.float() for x in (q, k, v)), precise=True, backend="fused")
    q, k, v = (torch.randn(2, heads, 37, 32).bfloat16() for heads in (4, 2, 2))
    options = {
        "pattern": "full",
        "mechanism": None,
        "first": None,
        "lowest": None,
        "softcap": None,
        "scale": None,
    }
    found = plain_attention(q, k, v, *[None] * 6, **options, dropout=0.0, precise=True)
    heads = (x.repeat_interleave(q.shape[1] // k.shape[1], 1).float() for x in (k, v))
    assert torch.equal(found, F.scaled_dot_product_attention(q.float(), *heads).bfloat16())


def is_sound(q, k, v) -> bool | None:
    """What the kernel says of its own output, before `Plan` acts on it."""
    plan = rg.plan_attention(q, k, v, pattern="causal", backend="native")
    here = grid_of_call(plan.problem, plan.keys, None, q.device)
    return plan._offer.run(prepare(plan.problem, here, Call(q, k, v))).sound


@pytest.mark.parametrize("instructions", [0, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("q_len", "k_len", "v_dim"), [(1, 40, 64), (1, 40, 37), (33, 40, 37), (150, 2 * SPAN, 5)]
)
def test_the_kernel_says_whether_its_output_is_finite(
    native, q_len, k_len, v_dim, dtype, instructions
):
    native.handle.rg_use_instructions(instructions)
    for learns in (False, True):
        q, k, v = make_qkv(q_len=q_len, k_len=k_len, v_dim=v_dim, dtype=dtype, requires_grad=learns)
        assert is_sound(q, k, v) is True
        for column in {0, v_dim // 2, v_dim - 1}:
            for filling in (float("nan"), float("inf")):
                changed = v.detach().clone()
                changed[-1, -1, 3, column] = filling
                assert is_sound(q, k, changed) is False
        assert is_sound(q, k, v) is True  # a call does not inherit what the one before found
