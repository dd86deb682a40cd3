"""layout="bnhd": heads behind the length, with the same bits, no copy, and refusals that name the axes as given."""

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from each_value import slow_except
from measuring import NewNumbers, frames

import regard as rg
from regard import bias as b
from regard.functional import remarks
from regard.layers.caches import new_cache

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

PATTERNS = (
    None,
    "causal",
    "sliding_window(6)",
    "causal & causal_window(5)",
    "causal & strided(3)",
    "global_tokens(0) | sliding_window(2)",
    "prefix(3)",
)


def swap(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2)


def drawn(
    batch: int, heads: int, kv_heads: int, q_len: int, k_len: int, head_dim: int, v_dim: int
) -> Tensors:
    """q, k and v with heads behind the length."""
    q = torch.randn(batch, q_len, heads, head_dim)
    k = torch.randn(batch, k_len, kv_heads, head_dim)
    v = torch.randn(batch, k_len, kv_heads, v_dim)
    return q, k, v


@dataclass
class LayoutCase:
    """A drawn call, as a function of its number."""

    number: int
    tensors: Tensors = field(init=False)
    options: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        draw = random.Random(self.number)
        torch.manual_seed(self.number)
        kv_heads = draw.choice([1, 2, 3])
        heads = kv_heads * draw.choice([1, 2, 5])
        k_len = draw.choice([1, 7, 13, 31, 67, 131])
        q_len = draw.choice([1, 2, 5, k_len, k_len])
        q_len = min(q_len, k_len)
        sizes = draw.choice([(8, 8), (16, 24), (7, 5), (64, 64)])
        batch = draw.choice([1, 2, 3])
        self.tensors = drawn(batch, heads, kv_heads, q_len, k_len, *sizes)
        self.options = {"pattern": draw.choice(PATTERNS)}
        if draw.random() < 0.3:
            self.options["bias"] = torch.randn(draw.choice([1, heads]), q_len, k_len)
        elif draw.random() < 0.3:
            self.options["bias"] = b.ALiBi()
        if draw.random() < 0.2:
            self.options["softcap"] = 3.0
        if draw.random() < 0.2:
            self.options["sink"] = torch.randn(heads)
        if draw.random() < 0.2:
            self.options |= {"dropout": 0.3, "dropout_seed": self.number}
        if draw.random() < 0.2:
            self.options["q_start"] = 2

    @property
    def backend(self) -> str:
        learning = [x.clone().requires_grad_() for x in self.tensors]
        return rg.plan_attention(*learning, **self.options, layout="bnhd").backend

    def with_gradients(self, layout: str) -> list[torch.Tensor]:
        """The output and the gradients of q, k and v, all with heads behind the length.

        Tensors of the usual layout are contiguous in it for the native kernel, and views for PyTorch's operations,
        whose last digits depend on the strides.
        """
        tensors = [x.clone() for x in self.tensors]
        if layout == "bhnd":
            tensors = [swap(x) for x in tensors]
            if self.backend == "native":
                tensors = [x.contiguous() for x in tensors]
        for x in tensors:
            x.requires_grad_()
        output = rg.attention(*tensors, **self.options, layout=layout)
        torch.manual_seed(self.number)
        weights = torch.randn_like(self.tensors[0][..., :1]).expand(-1, -1, -1, output.shape[-1])
        if layout == "bhnd":
            weights = swap(weights)
        gradients = torch.autograd.grad((output * weights).sum(), tensors)
        results = [output, *gradients]
        return [swap(x) for x in results] if layout == "bhnd" else results


@pytest.mark.filterwarnings("ignore::regard.errors.AmbiguousBiasWarning")
@pytest.mark.parametrize("first", slow_except(range(0, 300, 50), fast=range(0, 150, 50)))
def test_300_drawn_calls_have_equal_bits_in_both_layouts_and_so_have_their_gradients(first):
    for number in range(first, first + 50):
        case = LayoutCase(number)
        names = ("output", "dq", "dk", "dv")
        results = case.with_gradients("bnhd")
        for name, x, y in zip(names, results, case.with_gradients("bhnd"), strict=True):
            assert torch.equal(x, y), (number, name, case.options)


@pytest.mark.filterwarnings("ignore::regard.errors.AmbiguousBiasWarning")
def test_drawn_calls_without_gradients_have_equal_bits_when_they_are_new_and_when_they_are_repeated():
    for number in range(60):
        case = LayoutCase(number)
        q, k, v = case.tensors
        expected = swap(rg.attention(swap(q), swap(k), swap(v), **case.options))
        for _ in range(3):
            output = rg.attention(q, k, v, **case.options, layout="bnhd")
            assert torch.equal(output, expected), (number, case.options)


def test_nothing_is_copied_and_the_output_is_contiguous_in_its_layout():
    q, k, v = drawn(2, 6, 3, 101, 101, 16, 16)
    rg.attention(q, k, v, pattern="causal", layout="bnhd")
    with NewNumbers() as numbers:
        output = rg.attention(q, k, v, pattern="causal", layout="bnhd")
    assert output.shape == (2, 101, 6, 16)
    assert output.is_contiguous()
    assert numbers.made == output.numel()


def test_a_warm_call_of_the_usual_layout_passes_no_more_functions(fresh_plans):
    x = torch.randn(1, 4, 16, 64)
    named = frames(lambda: rg.attention(x, x, x, pattern="causal", layout="bhnd"))
    assert named == frames(lambda: rg.attention(x, x, x, pattern="causal"))


def test_plans_and_details_take_and_return_the_layout():
    q, k, v = drawn(2, 6, 3, 7, 11, 8, 5)
    expected = rg.attention_detail(swap(q), swap(k), swap(v), want=["entropy", "weights"])
    plan = rg.plan_attention(q, k, v, want=["entropy", "weights"], layout="bnhd")
    detail = rg.attention_detail(q, k, v, want=["entropy", "weights"], layout="bnhd")
    assert torch.equal(plan.run(q, k, v), swap(expected.output))
    for found in (detail, plan.detail(q, k, v), detail.plan.detail(q, k, v)):
        assert torch.equal(found.output, swap(expected.output))
        assert torch.equal(found.entropy, expected.entropy)
        assert torch.equal(found.weights, expected.weights)
    assert (plan.layout, expected.plan.layout) == ("bnhd", "bhnd")


def test_a_plan_of_one_layout_leaves_the_kept_plan_of_the_other_as_it_is():
    q, k, v = drawn(2, 6, 3, 7, 11, 8, 5)
    rg.plan_attention(q, k, v, layout="bnhd")
    usual = rg.plan_attention(swap(q), swap(k), swap(v))
    assert usual.layout == "bhnd"
    assert usual.run(swap(q), swap(k), swap(v)).shape == (2, 6, 7, 5)


def test_outputs_of_the_layout_are_merged():
    q, k, v = drawn(2, 6, 3, 7, 11, 8, 5)
    pieces = []
    for keys in (slice(0, 4), slice(4, 11)):
        half = rg.attention_detail(q, k[:, keys], v[:, keys], layout="bnhd")
        pieces.append((half.output, half.log_sum_exp))
    output, log_sum_exp = rg.merge_attention(pieces, layout="bnhd")
    whole = rg.attention_detail(q, k, v, layout="bnhd")
    torch.testing.assert_close(output, whole.output)
    torch.testing.assert_close(log_sum_exp, whole.log_sum_exp)
    with pytest.raises(rg.ShapeError, match=r"outputs \(batch, q_len, heads, v_dim\)"):
        rg.merge_attention([(swap(output), log_sum_exp)], layout="bnhd")


@pytest.mark.parametrize("kind", ["dynamic", "static", "ring", "paged"])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_cache_takes_and_returns_the_layout_which_attention_takes(kind, dtype):
    capacity = 31 if kind in ("static", "ring") else None
    caches = [new_cache(kind, 2, 3, 8, v_dim=5, dtype=dtype, capacity=capacity) for _ in range(2)]
    for added in (5, 1, 1):
        q, k, v = drawn(2, 6, 3, added, added, 8, 5)
        keys, values = caches[0].append(swap(k), swap(v))
        expected = rg.attention(swap(q), keys, values, pattern="causal")
        keys, values = caches[1].append(k, v, layout="bnhd")
        output = rg.attention(q, keys, values, pattern="causal", layout="bnhd")
        assert torch.equal(output, swap(expected))
        if dtype == "float32":
            assert keys.shape == (2, caches[1].length, 3, 8)


def test_packed_documents_may_have_their_heads_first():
    q, k, v = (x[0] for x in drawn(1, 6, 3, 12, 12, 8, 5))
    ends = torch.tensor([0, 5, 12])
    expected = rg.attention_varlen(q, k, v, ends, pattern="causal")
    assert torch.equal(
        rg.attention_varlen(q, k, v, ends, pattern="causal", layout="bnhd"), expected
    )
    packed = (x.transpose(0, 1) for x in (q, k, v))
    output = rg.attention_varlen(*packed, ends, pattern="causal", layout="bhnd")
    assert torch.equal(output, expected.transpose(0, 1))
    with pytest.raises(rg.ShapeError, match=r"takes packed tensors \(heads, positions, size\)"):
        rg.attention_varlen(q[None], k, v, ends, layout="bhnd")


def test_jagged_documents_may_have_their_heads_behind_their_length():
    documents = [torch.randn(length, 3, 4) for length in (5, 2)]
    x = torch.nested.nested_tensor(documents, layout=torch.jagged)
    output = rg.attention(x, x, x, pattern="causal", layout="bnhd")
    expected = rg.attention(*(x.transpose(1, 2),) * 3, pattern="causal")
    assert torch.equal(output.transpose(1, 2).values(), expected.values())
    with pytest.raises(rg.ShapeError, match=r"'bnhd' has \(batch, ragged length, heads, size\)"):
        rg.attention(*(x.transpose(1, 2),) * 3, layout="bnhd")


def test_transforms_and_compiled_graphs_take_the_layout():
    q, k, v = drawn(2, 6, 3, 7, 7, 8, 5)

    def attend(q: torch.Tensor) -> torch.Tensor:
        return rg.attention(q, k, v, pattern="causal", layout="bnhd")

    members = torch.stack([q, 2 * q])
    expected = torch.stack([attend(q), attend(2 * q)])
    assert torch.equal(torch.vmap(attend)(members), expected)
    torch._dynamo.reset()
    compiled = torch.compile(attend, backend="eager", fullgraph=True)
    assert torch.equal(compiled(q), attend(q))

    leaf = q.clone().requires_grad_()
    (expected_gradient,) = torch.autograd.grad(attend(leaf).square().sum(), leaf)
    of_transform = torch.func.grad(lambda q: attend(q).square().sum())(q)
    (of_graph,) = torch.autograd.grad(compiled(leaf).square().sum(), leaf)
    assert torch.equal(of_transform, expected_gradient)
    assert torch.equal(of_graph, expected_gradient)


def test_autocast_and_half_precision_take_the_layout():
    q, k, v = drawn(2, 6, 3, 7, 7, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        output = rg.attention(q, k, v, layout="bnhd")
        expected = rg.attention(swap(q), swap(k), swap(v))
    assert output.dtype == torch.bfloat16
    assert torch.equal(output, swap(expected))


SENTENCES = {
    "rank": (
        lambda q, k, v: (q[0], k, v),
        r"q has 3 axes \(7, 6, 8\); it needs 4: \(batch, q_len, heads, head_dim\); for one batch row give q\[None\], "
        r"for one head q\[:, :, None\]",
    ),
    "head_dim": (
        lambda q, k, v: (q, k[..., :3], v),
        r"'head_dim' is 8 in q \(2, 7, 6, 8\) but 3 in k \(2, 5, 3, 3\)",
    ),
    "kv_heads": (
        lambda q, k, v: (q, k[:, :, :2], v),
        r"'kv_heads' is 2 in k \(2, 5, 2, 8\) but 3 in v \(2, 5, 3, 4\)",
    ),
    "k_len": (
        lambda q, k, v: (q, k, v[:, :4]),
        r"'k_len' is 5 in k \(2, 5, 3, 8\) but 4 in v \(2, 4, 3, 4\)",
    ),
    "heads first": (
        lambda q, k, v: (swap(q), swap(k), swap(v)),
        r"swapped\? layout='bhnd' takes \(batch, heads, length, head_dim\)",
    ),
}
CALLS = {
    "attention": rg.attention,
    "plan": rg.plan_attention,
    "detail": rg.attention_detail,
}


@pytest.mark.parametrize("wrong", SENTENCES)
@pytest.mark.parametrize("call", CALLS)
def test_a_refusal_names_shapes_and_axes_as_they_were_given(call, wrong):
    change, sentence = SENTENCES[wrong]
    tensors = change(*drawn(2, 6, 3, 7, 5, 8, 4))
    with pytest.raises(rg.ShapeError, match=sentence):
        CALLS[call](*tensors, layout="bnhd")


def test_a_plan_that_is_run_with_other_tensors_names_their_shapes_as_they_were_given():
    q, k, v = drawn(2, 6, 3, 7, 5, 8, 4)
    plan = rg.plan_attention(q, k, v, layout="bnhd")
    with pytest.raises(rg.ArgumentError, match=r"8 in q \(2, 7, 6, 8\) but 3 in k \(2, 5, 3, 3\)"):
        plan.run(q, k[..., :3], v)
    with pytest.raises(rg.ArgumentError, match="made for q_len 7 and was given q_len 5"):
        plan.run(q[:, :5], k, v)


def test_a_refusal_of_the_usual_layout_names_the_other_one():
    q, k, v = drawn(2, 6, 3, 7, 5, 8, 4)
    with pytest.raises(rg.ShapeError, match=r"layout='bnhd' takes \(batch, length, heads"):
        rg.attention(q, k, v)


def test_packed_tensors_are_named_without_a_batch():
    q, k, v = (x[0] for x in drawn(1, 6, 3, 12, 12, 8, 5))
    with pytest.raises(rg.ShapeError, match=r"3 in k \(12, 3, 8\) but 2 in v \(12, 2, 5\)"):
        rg.attention_varlen(q, k, v[:, :2], torch.tensor([0, 12]))


def test_a_cache_names_the_axes_of_the_layout():
    _, k, v = drawn(2, 6, 3, 7, 5, 8, 4)
    cache = new_cache("dynamic", 2, 3, 8, v_dim=4)
    with pytest.raises(rg.ShapeError, match=r"kv_heads is 5 in k \(2, 3, 5, 8\)"):
        cache.append(swap(k), swap(v), layout="bnhd")
    with pytest.raises(rg.ShapeError, match=r"takes \(batch, added, kv_heads, head_dim\)"):
        cache.append(k[0], v[0], layout="bnhd")
    assert cache.length == 0


@pytest.mark.parametrize("layout", ["nhd", "BNHD", "bhdn", None, 4, torch.strided, ["b", "n"]])
def test_every_other_layout_is_refused_with_both_that_there_are(layout):
    q, k, v = drawn(2, 6, 3, 7, 7, 8, 8)
    ends = torch.tensor([0, 7])
    calls = [
        lambda: rg.attention(q, k, v, layout=layout),
        lambda: rg.plan_attention(q, k, v, layout=layout),
        lambda: rg.attention_detail(q, k, v, layout=layout),
        lambda: rg.attention_varlen(q[0], k[0], v[0], ends, layout=layout),
        lambda: rg.merge_attention([], layout=layout),
        lambda: new_cache("dynamic", 2, 3, 8).append(k, v, layout=layout),
    ]
    for call in calls:
        with pytest.raises(rg.ArgumentError, match=r"'bhnd' for .* or 'bnhd' for"):
            call()


def test_a_bias_of_three_axes_that_could_be_rows_or_heads_is_named_once_for_its_shape():
    remarks._warned.clear()
    q, k, v = drawn(3, 3, 3, 7, 5, 8, 8)
    bias = torch.randn(3, 7, 5)
    with pytest.warns(rg.errors.AmbiguousBiasWarning, match=r"bias\[:, None\]") as caught:
        output = rg.attention(q, k, v, bias=bias, layout="bnhd")
    assert caught[0].filename == __file__
    assert torch.equal(output, rg.attention(q, k, v, bias=bias, layout="bnhd"))
    assert torch.equal(output, rg.attention(q, k, v, bias=bias[None], layout="bnhd"))
    assert not torch.equal(output, rg.attention(q, k, v, bias=bias[:, None], layout="bnhd"))
    rg.attention(q, k, v, bias=bias, scale=0.3, layout="bnhd")  # a new call of these shapes


def test_a_bias_of_three_axes_that_can_be_read_in_one_way_alone_is_not_named():
    remarks._warned.clear()
    q, k, v = drawn(3, 3, 3, 7, 5, 8, 8)
    bias = torch.randn(3, 7, 5)
    rg.attention(q[:2], k[:2], v[:2], bias=bias, layout="bnhd")  # two rows: it can only be heads
    rg.attention(q, k, v, bias=bias[:1], layout="bnhd")
    one_of_each = (x[:1, :, :1] for x in (q, k, v))
    rg.attention(*one_of_each, bias=bias[:1], layout="bnhd")  # a row and a head: both are the same


def test_a_bias_of_three_axes_whose_first_is_the_batch_is_refused_with_the_way_out():
    q, k, v = drawn(2, 6, 3, 7, 5, 8, 4)
    with pytest.raises(rg.ShapeError, match=r"give bias\[:, None\] for one bias for each batch"):
        rg.attention(q, k, v, bias=torch.zeros(2, 7, 5), layout="bnhd")


@pytest.mark.parametrize("shape", [(5, 7, 5), (2, 6, 5), (2, 7, 3), (2, 2, 7, 5)])
def test_a_bias_that_is_not_one_for_each_batch_row_is_refused_without_that_way_out(shape):
    q, k, v = drawn(2, 6, 3, 7, 5, 8, 4)
    with pytest.raises(rg.ShapeError, match=r"does not broadcast to .* = \(2, 6, 7, 5\)$"):
        rg.attention(q, k, v, bias=torch.zeros(shape), layout="bnhd")
