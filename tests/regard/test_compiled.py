"""Inside torch.compile attention is what it is outside, bit for bit, or says by name why it is not there."""

import copy
import gc
import importlib
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch._inductor.config
from contracts.mechanism_cells import make_call
from torch._dynamo.exc import Unsupported
from torch._dynamo.testing import CompileCounterWithBackend
from torch._functorch import config
from torch.autograd import graph
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import regard as rg
from regard import bias as b
from regard import mechanisms as m
from regard import patterns as p
from regard.core.tensors import Stored
from regard.layers import NSA, MoBA
from regard.patterns.text import read_together
from regard.positions import Rotary
from regard.testing import make_qkv, oracle

LENGTHS = (16, 1, 63, 64, 65, 127, 128, 129)


@pytest.fixture(autouse=True)
def _nothing_compiled_before():
    torch._dynamo.reset()


def compiled(function: Callable[..., Any], backend: Any = "aot_eager") -> Callable[..., Any]:
    """A function as one graph. "eager" takes half of the time, and is enough where only tracing could go wrong."""
    return torch.compile(function, fullgraph=True, backend=backend)


def answers(function: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> list[torch.Tensor]:
    """The output and the gradients of all tensors, after the same random numbers."""
    torch.manual_seed(1)
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    output = function(*leaves)
    return [output, *torch.autograd.grad(output.square().sum(), leaves)]


def assert_same(
    function: Callable[..., torch.Tensor], *tensors: torch.Tensor, inside: Any = None
) -> torch.Tensor:
    """Assert that a function compiled as `inside`, or by aot_eager, gives the same bits; return the output."""
    expected = answers(function, *tensors)
    results = answers(inside or compiled(function), *tensors)
    assert [x.shape for x in results] == [x.shape for x in expected]
    assert all(map(torch.equal, results, expected))
    return results[0].detach()


def refusal(function: Callable[..., Any], *tensors: torch.Tensor) -> str:
    """What stops the compiler, without the lines of the function, which may hold the words that a test looks for."""
    with pytest.raises(Unsupported) as raised:
        compiled(function)(*tensors)
    reason, from_user_code, _ = str(raised.value).partition("from user code")
    assert from_user_code
    return reason


PATTERNS = (
    "causal & causal_window(4)",
    p.Causal(),
    p.SlidingWindow(4),
    p.DilatedWindow(4, 2),
    p.GlobalTokens([0, 5]) | p.CausalWindow(2),
    p.RandomBlocks(1, block=2, seed=3),
    p.Causal() & p.Strided(3),
    p.Fixed(4, summary=2),
    p.Prefix(3) | p.Causal(),
    (p.Causal() & p.CausalWindow(5)) | p.KeySpan(0, 2),
    ~p.CausalWindow(3),
    ~p.Full(),
    p.PerHead([p.Causal(), p.CausalWindow(2), p.Full(), p.Strided(3), p.Prefix(2), ~p.Prefix(2)]),
)


def test_one_compiled_function_serves_every_pattern_and_is_exact():
    """In one function, so that numbers of patterns change from call to call, which the compiler takes for sizes."""

    def function(q, k, v, pattern):
        return rg.attention(q, k, v, pattern=pattern)

    with torch._dynamo.config.patch(recompile_limit=len(PATTERNS)):
        whole = compiled(function, "eager")
        for pattern in PATTERNS:
            inside = partial(whole, pattern=pattern)
            assert_same(partial(function, pattern=pattern), *make_qkv(), inside=inside)


@pytest.mark.parametrize(
    "options",
    [
        {"softcap": 3.0, "scale": 0.3},
        {"dropout": 0.3, "dropout_seed": 7},
        {"dropout": 0.3, "dropout_seed": -(2**70) - 3},
        {"dropout": 0.3},
        {"pattern": "causal", "q_start": 2},
        {"pattern": "causal", "q_start": torch.tensor([1, 3])},
        {"pattern": "causal", "bias": b.ALiBi()},
        {"pattern": "causal", "bias": b.ALiBi(), "q_start": 2},
        {"bias": torch.ones(7, 11).tril(), "sink": 0.5},
        {
            "pattern": p.Causal() & p.SameDocument(torch.arange(11) // 4),
            "q_start": torch.tensor([4, 1]),
        },
        {"pattern": "causal", "backend": "reference"},
    ],
    ids=lambda options: " ".join(options),
)
def test_every_option_is_exact(options):
    assert_same(lambda q, k, v: rg.attention(q, k, v, **options), *make_qkv())


@pytest.mark.parametrize(
    "name", ["ssd", "kimi_delta", "performer", "linformer", "local-predictive", "linear"]
)
def test_a_mechanism_is_one_operation_with_the_gradients_of_its_parameters(name):
    call = make_call(name, dtype=torch.float32)
    learned = call.parameters or {}
    pattern = None if name == "linformer" else "causal"

    def function(q, k, v, *parameters):
        named = dict(zip(learned, parameters, strict=True)) or None
        return rg.attention(q, k, v, pattern=pattern, mechanism=call.mechanism, parameters=named)

    transposed = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in call.tensors]
    assert_same(function, *transposed, *learned.values())


def test_value_heads_that_share_keys_every_length_and_a_second_decay_are_one_graph():
    counter = CompileCounterWithBackend("aot_eager")
    inside = torch.compile(rg.attention, fullgraph=True, backend=counter)
    for length, decay in ((9, -0.1), (1, -0.2), (33, -0.3), (70, -torch.inf)):
        q = torch.randn(2, 2, length, 5)
        k = torch.randn(2, 2, length, 5)
        v = torch.randn(2, 4, length, 3)
        parameters = {
            "log_decay": torch.full((2, 4, length), decay),
            "strength": torch.rand(2, 4, length),
        }
        options = {"pattern": "causal", "mechanism": "ssd", "parameters": parameters}
        assert torch.equal(inside(q, k, v, **options), rg.attention(q, k, v, **options))
    assert counter.frame_count <= 3


@pytest.mark.parametrize(
    ("name", "shape"), [*product(["bias"], [(2, 6, 7, 11), (6, 1, 11), (11,)]), ("sink", (6,))]
)
def test_a_bias_or_sink_that_learns_gets_its_exact_gradient(name, shape):
    assert_same(
        lambda q, k, v, x: rg.attention(q, k, v, **{name: x}), *make_qkv(), torch.randn(shape)
    )


def test_a_bias_by_distance_learns():
    q, k, v = make_qkv()
    bias = b.T5Relative(heads=6)
    grads = []
    for function in (rg.attention, compiled(rg.attention)):
        output = function(q, k, v, pattern="causal", bias=bias)
        grads += torch.autograd.grad(output.square().sum(), bias.weight)
    assert torch.equal(*grads)
    assert grads[0].abs().max() > 0


@pytest.mark.parametrize(
    ("dtype", "layout"),
    [(torch.float16, "transposed"), (torch.bfloat16, "sliced"), (torch.float64, "expanded")],
    ids=str,
)
def test_every_dtype_and_layout_is_exact(dtype, layout):
    def function(q, k, v):
        return rg.attention(q, k, v, pattern="causal")

    qkv = make_qkv(dtype=dtype, layout=layout)
    with torch.no_grad():
        assert torch.equal(compiled(function)(*qkv), function(*qkv))
    assert_same(function, *make_qkv(dtype=dtype))


@pytest.mark.parametrize(("bias", "dynamic"), [(None, None), (b.ALiBi(), None), (b.ALiBi(), True)])
def test_every_length_is_right_and_eight_of_them_recompile_twice(bias, dynamic):
    def function(q, k, v):
        return rg.attention(q, k, v, pattern="causal & causal_window(64)", bias=bias)

    counter = CompileCounterWithBackend("eager")
    inside = torch.compile(function, fullgraph=True, backend=counter, dynamic=dynamic)
    for length in LENGTHS:
        q, k, v = make_qkv(q_len=length, k_len=length)
        assert torch.equal(inside(q, k, v), function(q, k, v)), length
    assert counter.frame_count <= 3


LAYERS: dict[str, dict[str, Any]] = {
    "grouped, rotated, causal": {
        "kv_heads": 2,
        "pattern": "causal & causal_window(4)",
        "positions": Rotary(),
    },
    "dropout": {"dropout": 0.2},
    "gated delta": {"kv_heads": 2, "pattern": "causal", "mechanism": "gated_delta"},
    "a score that learns": {"mechanism": "softmax(general(8, 8))"},
    "MoBA": {"kv_heads": 2, "chooser": MoBA(block=2, top=2)},
    "NSA": {"kv_heads": 2, "chooser": NSA(length=2, stride=1, block=2, top=3, window=3)},
}


@pytest.mark.parametrize("options", LAYERS.values(), ids=LAYERS)
def test_a_compiled_layer_trains_exactly(options):
    layer = rg.MultiHeadAttention(dim=32, heads=4, **options)

    def train(module):
        torch.manual_seed(3)
        output = module(torch.randn(2, 7, 32))
        loss = output.square().sum()
        return [output, *torch.autograd.grad(loss, tuple(layer.parameters()))]

    for x, expected in zip(train(compiled(layer)), train(layer), strict=True):
        if "mechanism" in options:  # its gates sum the gradients in another order
            torch.testing.assert_close(x, expected, rtol=1e-5, atol=1e-7)
        else:
            assert torch.equal(x, expected)


@torch.no_grad()
def test_a_recording_hears_a_compiled_layer_or_stops_it_and_is_forgotten_afterwards():
    layer = rg.MultiHeadAttention(dim=32, heads=4, pattern="causal")
    x = torch.randn(2, 7, 32)
    whole = compiled(layer, "eager")
    loose = torch.compile(layer, backend="eager")
    before = whole(x)
    with rg.record_attention(layer) as recording:
        with pytest.raises(Unsupported, match="on the uncompiled model"):
            whole(x)
        assert torch.equal(loose(x), before)
    assert len(recording[""]) == 1
    assert torch.equal(whole(x), before)


UNREAD = type("Unread", (m.LinearTransformer,), {}, enrol=False)()  # a mechanism that no text names
UNWRITABLE: dict[str, tuple[dict[str, Any], str]] = {
    "a function": ({"pattern": p.Where(lambda i, j: i > j)}, "holds more than tensors and numbers"),
    "a mechanism of your own": ({"mechanism": UNREAD}, "Unread has no text that reads back"),
    "moved rows and distances": (
        {"bias": b.ALiBi(), "q_start": torch.tensor([1, 2])},
        "tensor of q_start is not comp",
    ),
}


@pytest.mark.parametrize(("options", "words"), UNWRITABLE.values(), ids=UNWRITABLE)
def test_what_has_no_place_in_a_graph_is_refused_by_name_and_computed_beside_it(options, words):
    def function(q, k, v):
        return rg.attention(q + 1, k, v, **options)

    assert words in refusal(function, *make_qkv())
    beside = torch.compile(function, backend="eager")
    assert torch.equal(beside(*make_qkv()), function(*make_qkv()))


# By name: of the length a tensor, and of the tensor the pattern that holds it.
HELD: dict[str, tuple[Callable[[int], torch.Tensor], Callable[[torch.Tensor], p.Pattern]]] = {
    "left padding": (
        lambda n: torch.tensor([n // 3, 0]),
        lambda start: p.Causal() & p.KeySpan(start),
    ),
    "padding with holes": (
        lambda n: torch.arange(2 * n).view(2, n) % 5 != 1,
        lambda live: p.Causal() & p.KeyMask(live),
    ),
    "documents by row": (
        lambda n: torch.arange(2 * n).view(2, n) // 6,
        lambda ids: p.SameDocument(ids) | p.Prefix(2),
    ),
    "blocks by row": (
        lambda n: torch.tensor([0, 3]),
        lambda offset: p.Causal() & p.SameBlock(6, offset=offset),
    ),
    "a mask": (lambda n: torch.arange(n * n).view(n, n) % 3 != 1, lambda mask: p.Explicit(mask)),
}


@pytest.mark.parametrize("name", HELD)
def test_patterns_that_hold_tensors_are_exact_in_one_graph_that_recompiles_once_for_all_lengths(
    name,
):
    tensor_of, pattern_of = HELD[name]
    made_inside = list(HELD).index(name) % 2

    def function_of_tensor(q, k, v, held):
        return rg.attention(q, k, v, pattern=pattern_of(held))

    def function_of_pattern(q, k, v, held):
        return rg.attention(q, k, v, pattern=held & p.Prefix(40))

    function = function_of_tensor if made_inside else function_of_pattern
    counter = CompileCounterWithBackend("eager")
    inside = torch.compile(function, fullgraph=True, backend=counter)
    for length in (9, 17, 33, 17):
        held: Any = tensor_of(length)
        pattern = pattern_of(held)
        if not made_inside:
            held = pattern
            pattern = pattern & p.Prefix(40)
        qkv = make_qkv(q_len=length, k_len=length)
        output = assert_same(partial(function, held=held), *qkv, inside=partial(inside, held=held))
        mask = pattern.dense(length, length).numpy()
        expected = oracle.answer(*(x.numpy() for x in qkv), mask, scale=5**-0.5)
        expected_output = torch.from_numpy(expected.output)
        torch.testing.assert_close(output.double(), expected_output, atol=2e-5, rtol=0)
    assert counter.frame_count <= 2


def test_numbers_that_change_in_the_memory_of_a_tensor_change_the_pattern():
    """A graph may write new numbers where old ones were, so a pattern is known again by numbers alone."""
    x = torch.randn(2, 1, 5, 4)
    stop = torch.tensor([2, 3])
    inside = compiled(lambda x, stop: rg.attention(x, x, x, pattern=p.KeySpan(0, stop)))
    for numbers in ([2, 3], [1, 5], [4, 4], [2, 3]):
        stop.copy_(torch.tensor(numbers))
        span = p.KeySpan(0, torch.tensor(numbers))
        assert torch.equal(inside(x, stop), rg.attention(x, x, x, pattern=span))


def test_patterns_that_a_graph_returns_in_two_runs_are_not_equal():
    """Their tensors differ and their serial does not, since it is a constant of the graph."""
    make = compiled(lambda ids: (ids + 1, p.SameDocument(ids)))
    _, first = make(torch.tensor([1, 1, 2]))
    _, second = make(torch.tensor([1, 2, 2]))
    assert first == first
    assert first != second
    assert p.SameDocument(torch.tensor([1])) not in (first, second)


def test_the_text_of_a_pattern_with_tensors_is_read_with_its_tensors_only():
    assert str(read_together("causal & key_span(0, tensor_0)", [torch.tensor([1, 2])])) == (
        "causal & key_span(0, <2 numbers>)"
    )
    for text in ("key_span(0, tensor_0)", "same_document(ids=tensor_0)"):
        with pytest.raises(rg.ArgumentError):
            p.parse(text)
    with pytest.raises(rg.ArgumentError):
        read_together("key_span(0, tensor_1)", [torch.tensor([1, 2])])


def test_stored_keys_plans_and_details_are_refused_by_name():
    q, k, v = make_qkv()
    stored = Stored(k.bfloat16()), Stored(v.bfloat16())
    plan = rg.plan_attention(q, k, v)
    assert "as a cache stores them are not compiled" in refusal(
        lambda q: rg.attention(q, *stored), q
    )
    assert "attention_detail is not compiled" in refusal(
        lambda q: rg.attention_detail(q, k, v).output, q
    )
    assert "plan_attention is not compiled" in refusal(
        lambda q: rg.plan_attention(q, k, v).run(q, k, v), q
    )
    assert "a plan cannot be run inside" in refusal(lambda q: plan.run(q, k, v), q)


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "backend": ({"softcap": 2.0, "backend": "fused"}, rg.UnsupportedError, "no softcap"),
    "bias": ({"bias": torch.zeros(5)}, rg.ShapeError, "does not broadcast"),
    "strict": ({"strict": True, "backend": "reference"}, rg.UnsupportedError, "strict=True"),
}


@pytest.mark.parametrize(("options", "kind", "words"), WRONG.values(), ids=WRONG)
def test_a_wrong_call_raises_what_it_raises_outside(options, kind, words):
    with pytest.raises(kind, match=words):
        compiled(lambda q, k, v: rg.attention(q, k, v, **options))(*make_qkv())


# The warning is torch's own, of 2.15.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("sizes", [(5, 13), (13, 5)], ids=str)
def test_the_operation_keeps_every_promise_to_the_compiler(sizes):
    q, k, v = make_qkv(head_dim=sizes[0], v_dim=sizes[1], requires_grad=True, layout="transposed")
    importlib.import_module("regard.functional.compiled")  # which defines the operation
    bias = torch.randn(1, 6, 7, 11)
    sink = torch.randn(6)
    call = {
        "pattern": "causal",
        "first": None,
        "lowest": None,
        "softcap": None,
        "scale": None,
        "dropout": 0.0,
        "strict": False,
        "backend": "fused",
        "learns": [True, True, True, False, False],
        "mechanism": None,
        "names": [],
    }
    held = [torch.tensor([2, 0])]
    call |= {"pattern": "causal & key_span(tensor_0)"}
    torch.library.opcheck(
        torch.ops.regard.attention.default,
        (q, k, v, bias, sink, None, None, held, None, None),
        call,
    )
    strength = [torch.rand(2, 11, k.shape[1]).transpose(1, 2).requires_grad_()]
    call |= {
        "mechanism": "delta_rule",
        "names": ["strength"],
        "backend": "auto",
        "learns": [True] * 3 + [False] * 2 + [True],
    }
    k = (k / 10).detach().requires_grad_()
    torch.library.opcheck(
        torch.ops.regard.attention.default, (q, k, v, *[None] * 4, held, strength, None), call
    )


def test_the_default_compiler_calls_the_operation_forward_and_backward():
    """Its table of decompositions has the one that exporters use, and it refuses operations that it has both ways."""
    q, k, v = (torch.randn(1, 2, 9, 4, requires_grad=True) for _ in range(3))
    inside = torch.compile(lambda *qkv: rg.attention(*qkv, pattern="causal"), fullgraph=True)
    with (
        torch._inductor.config.patch(fx_graph_cache=False),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        output = inside(q, k, v)
        expected = rg.attention(q, k, v, pattern="causal")
    assert torch.equal(output, expected)
    gradients = torch.autograd.grad(output.sin().sum(), (q, k, v))
    expected_gradients = torch.autograd.grad(expected.sin().sum(), (q, k, v))
    assert all(map(torch.equal, gradients, expected_gradients))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # torch's own
def test_inductor_is_exact_forward_and_backward():
    def function(q, k, v):
        return rg.attention(q.transpose(1, 2).contiguous().transpose(1, 2), k, v, pattern="causal")

    assert_same(function, *make_qkv(), inside=compiled(function, "inductor"))
    layer = rg.MultiHeadAttention(
        dim=32, heads=4, kv_heads=2, pattern="causal & causal_window(4)", dropout=0.1
    ).eval()
    inside = compiled(layer, "inductor")
    for length in (9, 30, 1, 64):
        x = torch.randn(2, length, 32)
        torch.testing.assert_close(inside(x), layer(x), atol=1e-6, rtol=1e-6)


def test_a_call_between_two_graphs_is_not_compiled_though_its_plan_is_kept():
    graphs: list[list[Any]] = []

    def count(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append([node.target for node in graph.graph.nodes if node.op.startswith("call")])
        return graph.forward

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        return rg.attention(y, y, y, pattern="causal", mechanism=UNREAD)

    x = torch.randn(1, 2, 16, 8)
    expected = function(x)  # its plan is kept from here on
    compiled = torch.compile(function, backend=count)
    torch.testing.assert_close(compiled(x), expected)
    assert all(len(calls) == 1 for calls in graphs), graphs  # the addition, or nothing


# The warning is torch's own.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")


DROPPING = rg.MultiHeadAttention(dim=6, heads=2, pattern="causal", dropout=0.5)


def twice(x: torch.Tensor) -> torch.Tensor:
    return DROPPING(DROPPING(x)).square().sum()


def in_a_region(x: torch.Tensor) -> torch.Tensor:
    with graph.region_activation_memory_budget(0.0):
        return twice(x)


def keeping_products(_, operation, *args, **options):
    if operation is torch.ops.aten.addmm.default:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


def checkpointed(x: torch.Tensor, **options) -> torch.Tensor:
    for _ in range(2):
        x = checkpoint(DROPPING, x, use_reentrant=False, **options)
    return x.square().sum()


def of_the_same_draws(function) -> list[torch.Tensor]:
    torch.manual_seed(7)
    x = torch.arange(42.0).view(1, 7, 6).sin().requires_grad_()
    output = function(x)
    return [output, *torch.autograd.grad(output, (x, *DROPPING.parameters()))]


SAVING = {
    "no budget": (0.0, twice, {}),
    "checkpoints": (1.0, checkpointed, {}),
    "checkpoints that keep products": (
        1.0,
        checkpointed,
        {"context_fn": partial(create_selective_checkpoint_contexts, keeping_products)},
    ),
}


if hasattr(graph, "region_activation_memory_budget"):  # newer than torch 2.11
    SAVING["a region without a budget"] = (1.0, in_a_region, {})


@pytest.mark.parametrize(
    "backend", ["aot_eager_decomp_partition", pytest.param("inductor", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(("budget", "function", "options"), SAVING.values(), ids=SAVING)
def test_a_backward_pass_that_computes_again_has_the_dropout_of_the_forward_pass(
    budget, function, options, backend
):
    with config.patch(activation_memory_budget=budget):
        inside = torch.compile(partial(function, **options), fullgraph=True, backend=backend)
        results = of_the_same_draws(inside)
    for x, expected in zip(results, of_the_same_draws(twice), strict=True):
        torch.testing.assert_close(x, expected, atol=1e-6, rtol=1e-6)


def test_equal_calls_in_one_graph_draw_different_seeds():
    x = torch.ones(1, 1, 3, 64)

    def function(x):
        return [rg.attention(x, x, x, dropout=0.5) for _ in range(2)]

    inside = torch.compile(function, fullgraph=True, backend="aot_eager_decomp_partition")
    first, second = inside(x)
    assert not torch.equal(first, second)


STEPPING = rg.MultiHeadAttention(
    dim=6, heads=2, head_dim=4, pattern="causal", positions="rotary"
).eval()


def in_steps(layer, kind: str, **options: int) -> torch.Tensor:
    """The output of seven vectors in three calls with a cache."""
    cache = STEPPING.new_cache(1, kind, **options)
    pieces = torch.arange(42.0).view(1, 7, 6).sin().split([3, 1, 3], dim=1)
    return torch.cat([layer(piece, cache=cache) for piece in pieces], 1)


STATIC = {
    "grouped": lambda: rg.MultiHeadAttention(
        6, 2, head_dim=4, kv_heads=1, pattern="causal", positions="rotary"
    ),
    "window": lambda: rg.MultiHeadAttention(
        6, 3, pattern="causal_window(9)", sinks=True, output_gate=True
    ),
    "latent": lambda: rg.LatentAttention(
        6, 2, latent_dim=5, rope_dim=4, head_dim=3, pattern="full"
    ),
    "forgetting": lambda: rg.MultiHeadAttention(
        6, 2, kv_heads=1, pattern="causal", forgetting=True
    ),
}
# Outside of a graph the first step would be expanded, since that is cheaper for one key; a graph does not know lengths.
FORMS = {"latent": {"form": "absorbed"}}


@pytest.mark.parametrize(
    ("name", "options"),
    [*((name, FORMS.get(name, {})) for name in STATIC), ("grouped", {"bias": b.ALiBi()})],
)
@torch.inference_mode()
def test_one_graph_serves_every_step_of_a_static_cache(name, options):
    layer = STATIC[name]().eval()
    x = torch.arange(240.0).view(1, 40, 6).sin()
    tokens = x.split(1, dim=1)
    cache = layer.new_cache(1, "static", 40)
    cache_outside = layer.new_cache(1, "static", 40)
    counter = CompileCounterWithBackend("eager")
    step = torch.compile(layer, fullgraph=True, backend=counter)
    for plane in cache._now.planes.values():
        plane.fill_(torch.nan)  # as memory that was never written may be

    for token in tokens[:34]:
        output = step(token, cache=cache, **options)
        # Outside of graphs few rows are multiplied by the compiled library, which adds up in another order.
        torch.testing.assert_close(output, layer(token, cache=cache_outside, **options))
    torch.testing.assert_close(output, layer(x[:, :34], **options)[:, -1:])
    assert (cache.length, counter.frame_count) == (34, 1)
    torch.testing.assert_close(cache.keys, cache_outside.keys)
    cache.crop(5)
    for number, token in enumerate(tokens[5:], start=5):  # some steps outside of the graph
        either = layer if number % 9 < 2 else step
        output = either(token, cache=cache, **options)
    torch.testing.assert_close(output, layer(x, **options)[:, -1:])

    with pytest.raises(rg.RegardError, match="this cache holds 40 of 40"):
        step(tokens[0], cache=cache, **options)
    assert (cache.length, counter.frame_count) == (40, 1)
    step_of_another = torch.compile(copy.deepcopy(layer), fullgraph=True, backend="eager")
    with pytest.raises((Unsupported, rg.ArgumentError), match="of another layer"):
        step_of_another(tokens[0], cache=cache, **options)


@torch.inference_mode()
def test_a_static_cache_in_a_graph_refuses_to_round_and_to_learn():
    output = in_steps(compiled(STEPPING, "eager"), "static", capacity=11)
    torch.testing.assert_close(output, STEPPING(torch.arange(42.0).view(1, 7, 6).sin()))
    for cache, grad in (
        (STEPPING.new_cache(1, "static", 9, torch.bfloat16), False),
        (STEPPING.new_cache(1, "static", 9), True),
    ):
        with (
            torch.inference_mode(False),
            torch.set_grad_enabled(grad),
            pytest.raises(Unsupported, match="give new_cache no"),
        ):
            compiled(STEPPING, "eager")(torch.ones(1, 1, 6), cache=cache)
        assert not cache.length


@torch.no_grad()
def test_pages_are_taken_and_freed_outside_of_every_graph(monkeypatch):
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    output = in_steps(torch.compile(STEPPING, backend="eager"), "paged")
    torch.testing.assert_close(output, STEPPING(torch.arange(42.0).view(1, 7, 6).sin()))
    torch._dynamo.reset()
    with pytest.raises(Unsupported, match=r"PagedCache\.append_gated is not compiled"):
        in_steps(compiled(STEPPING, "eager"), "paged")
    gc.collect()
    assert not unraisable
