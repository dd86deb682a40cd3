"""Every number of a call may change between two runs of a compiled function, which then computes what it is outside.

The tables are read from the classes and from the signature of `attention`, so that a new number is compared too.
"""

import inspect
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import pytest
import torch
from contracts.mechanism_cells import MECHANISMS
from fuzz.meanings import LEAVES, Places, build, plain_leaf
from torch._dynamo.exc import Unsupported
from torch._dynamo.testing import CompileCounterWithBackend

import regard as rg
from regard import bias as b
from regard import mechanisms as m
from regard import patterns as p
from regard.mechanisms.base import Mechanism, Sizes
from regard.mechanisms.linear import Relu
from regard.patterns.registry import Declared
from regard.testing import make_qkv

LENGTH = 11
HEADS = 6
MANY = 13  # more values than a compiler compiles graphs for one function (8)
SEQUENCE = [0.5 + number / MANY for number in range(MANY)]


@pytest.fixture(autouse=True)
def _nothing_compiled_before():
    torch._dynamo.reset()


def answers(function: Callable[..., torch.Tensor], tensors: Any, value: Any) -> list[torch.Tensor]:
    """The output of a function and the gradients of its tensors."""
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    output = function(*leaves, value)
    return [output, *torch.autograd.grad(output.square().sum(), leaves)]


def assert_each_equal(
    function: Callable[..., torch.Tensor],
    cases: list[tuple[Any, Any]],
    dynamic: bool | None,
    backend: str = "aot_eager",
) -> int:
    """Assert that one compiled function gives the bits of the plain one in every case; return how often it compiled.

    Args:
        function: of tensors and a value.
        cases: the tensors and the value of each run.
        dynamic: of torch.compile.
        backend: of torch.compile.
    """
    counter = CompileCounterWithBackend(backend)
    inside = torch.compile(function, fullgraph=True, backend=counter, dynamic=dynamic)
    outputs = []
    for tensors, value in cases:
        results = answers(inside, tensors, value)
        assert all(map(torch.equal, results, answers(function, tensors, value))), value
        outputs.append(results[0])
    assert not torch.equal(outputs[0], outputs[1]), "the number changes nothing here"
    return counter.frame_count


static_or_dynamic = pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])


OPTIONS: dict[str, tuple[list[Any], dict[str, Any]]] = {  # values, and what else the call is given
    "sink": (SEQUENCE, {}),
    "softcap": (SEQUENCE, {}),
    "scale": (SEQUENCE, {}),
    "dropout": (SEQUENCE[:7] + [0.0, 0.25], {"dropout_seed": 5}),
    "dropout_seed": ([5, 7, 2**40 + 1, -3], {"dropout": 0.5}),
    "q_start": ([5, 7, 0, 2, -3], {"pattern": "causal"}),
}


def test_every_number_that_attention_takes_is_in_the_table():
    numbers = set()
    for parameter in inspect.signature(rg.attention).parameters.values():
        if "float" in parameter.annotation or "int" in parameter.annotation:
            numbers.add(parameter.name)
    assert numbers == set(OPTIONS)


@pytest.mark.each_value
@static_or_dynamic
@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_that_changes_compiles_at_most_one_more_graph(name, dynamic):
    values, others = OPTIONS[name]

    def function(q, k, v, value):
        return rg.attention(q, k, v, **{name: value}, **others)

    tensors = make_qkv()
    compiled = assert_each_equal(function, [(tensors, value) for value in values], dynamic)
    assert compiled <= 2 + (name == "q_start")


@static_or_dynamic
def test_dropout_that_changes_draws_the_seeds_of_the_generator(dynamic):
    def function(x, share):
        return rg.attention(x, x, x, dropout=share)

    inside = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    x = torch.randn(1, 2, 5, 4)
    shares = (0.5, 0.25, 0.0, 0.75)
    torch.manual_seed(3)
    outputs = [inside(x, share) for share in shares]
    torch.manual_seed(3)
    expected = [function(x, share) for share in shares]
    assert all(map(torch.equal, outputs, expected))


@static_or_dynamic
def test_a_number_as_sink_is_not_rounded_to_half_precision(dynamic):
    def function(x, sink):
        return rg.attention(x, x, x, sink=sink)

    inside = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    x = torch.randn(1, 2, 5, 64, dtype=torch.bfloat16)
    for sink in (6.03, 5.07, 7.01):
        assert torch.equal(inside(x, sink), function(x, sink))


# The size of vectors, which no call can choose, and a number that only layers read.
NOT_OF_CALLS = {"query_dim", "key_dim", "most_strength"}
STEPS = {"buckets": 2}  # the other whole numbers become larger by 1


def numbers_in(declared: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The places of all numbers in a declaration and in those inside it."""
    for field in fields(declared):
        value = getattr(declared, field.name)
        if isinstance(value, Declared):
            yield from numbers_in(value, (*path, field.name))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield (*path, field.name)


def with_number(declared: Any, path: tuple[str, ...], number: float) -> Any:
    """The same declaration with another number at a place."""
    values = {field: getattr(declared, field) for field in type(declared).__match_args__}
    name, *rest = path
    if rest:
        values[name] = with_number(values[name], tuple(rest), number)
    else:
        values[name] = number
    return type(declared)(**values)


def number_at(declared: Any, path: tuple[str, ...]) -> float:
    for name in path:
        declared = getattr(declared, name)
    return declared


def field_of(declared: Any, path: tuple[str, ...]) -> tuple[type, str]:
    """The class that holds a number, and the name of the field."""
    return type(number_at(declared, path[:-1])), path[-1]


def others_like(name: str, number: float) -> list[Any]:
    """A number and another that the field of this name may hold."""
    if isinstance(number, float):
        return [number, number * 0.75]
    return [number, number + STEPS.get(name, 1)]


MAPS = [m.LinearTransformer(kind()) for kind in m.FeatureMap.registry.of_package("regard").values()]
KNOWN: set[tuple[type, str]] = set()
FIELDS: dict[str, tuple[Any, tuple[str, ...]]] = {}  # a mechanism, and the place of a number in it
for declared in (*MECHANISMS.values(), *MAPS):
    paths = [path for path in numbers_in(declared) if path[-1] not in NOT_OF_CALLS]
    new = [path for path in paths if field_of(declared, path) not in KNOWN]
    KNOWN.update(field_of(declared, path) for path in new)
    # One number is enough where another option of the same class is set, such as a gate.
    for path in new or paths[-1:]:
        FIELDS[f"{declared}: {'.'.join(path)}"] = (declared, path)


def test_every_class_with_a_number_is_in_the_table():
    kinds = [
        *Mechanism.registry.of_package("regard").values(),
        *m.Score.registry.of_package("regard").values(),
        *m.FeatureMap.registry.of_package("regard").values(),
    ]
    declared_numbers = set()
    for kind in kinds:
        for field in fields(kind):
            is_number = "int" in str(field.type) or "float" in str(field.type)
            if is_number and field.name not in NOT_OF_CALLS:
                declared_numbers.add((kind, field.name))
    assert {field_of(*place) for place in FIELDS.values()} == declared_numbers


def tensors_of(mechanism: Mechanism) -> tuple[list[torch.Tensor], list[str]]:
    """q, k, v and the parameters of a call, and the names of these."""
    kv_heads = HEADS if mechanism.shares_keys else HEADS // 2
    q, k, v = make_qkv(heads=HEADS, kv_heads=kv_heads, q_len=LENGTH, k_len=LENGTH)
    shapes = mechanism.parameter_shapes(Sizes(len(q), HEADS, kv_heads, LENGTH, q.shape[-1]))
    drawn = torch.Generator().manual_seed(3)
    parameters = {}
    for name, shape in shapes.items():
        x = torch.randn(shape, generator=drawn)
        if name == "log_decay":
            x = -x.abs()
        elif name in ("gate", "strength"):
            x = x.sigmoid() / 3
        if name not in mechanism.optional:
            parameters[name] = x
    return [q, k, v, *parameters.values()], list(parameters)


@dataclass(frozen=True)
class Inner:
    number: float = 1.0


@dataclass(frozen=True)
class Outer:
    inner: Inner = Inner()


@cache
def traces_defaults() -> bool:
    """Whether PyTorch makes objects of a class with an object as default inside of a compiled function; 2.11 cannot."""

    def function(x, number):
        return x * Outer(inner=Inner(number)).inner.number

    inside = torch.compile(function, fullgraph=True, backend="eager", dynamic=True)
    try:
        return inside(torch.ones(1), 3.0).item() == 3
    except Unsupported:
        return False


WAYS = {
    "given": (False, None),
    "given, dynamic": (False, True),
    "made inside, dynamic": (True, True),
}


@pytest.mark.each_value
@pytest.mark.parametrize(("made_inside", "dynamic"), WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("place", FIELDS)
def test_a_number_of_a_mechanism_may_change(place, made_inside, dynamic):
    mechanism, path = FIELDS[place]
    _, names = tensors_of(mechanism)
    shares_keys = mechanism.shares_keys
    pattern = None if isinstance(mechanism, m.Linformer) else "causal"

    def function(q, k, v, *learned_and_value):
        *learned, value = learned_and_value
        declared = with_number(mechanism, path, value) if made_inside else value
        parameters = dict(zip(names, learned, strict=True)) or None
        if shares_keys:
            q = k = k + 0 * q  # one tensor, in which both learn
        return rg.attention(q, k, v, pattern=pattern, mechanism=declared, parameters=parameters)

    cases = []
    for number in others_like(path[-1], number_at(mechanism, path)):
        declared = with_number(mechanism, path, number)
        tensors, _ = tensors_of(declared)
        cases.append((tensors, number if made_inside else declared))
    if made_inside and len(path) > 1 and not traces_defaults():
        with pytest.raises(Unsupported, match="sourceless builder"):
            assert_each_equal(function, cases, dynamic, "eager")
        return
    assert_each_equal(function, cases, dynamic, "eager")


FLOATS = {
    "lightning": lambda number: m.Lightning(number),
    "random_feature": lambda number: m.RandomFeature(features=5, sigma=number),
    "linear(relu)": lambda number: m.LinearTransformer(Relu(number)),
}


@pytest.mark.each_value
@static_or_dynamic
@pytest.mark.parametrize("name", FLOATS)
def test_layers_with_a_float_of_their_own_share_two_graphs(name, dynamic):
    """As the layers of a model that is compiled layer by layer."""

    def function(q, k, v, mechanism):
        return rg.attention(q, k, v, pattern="causal", mechanism=mechanism)

    tensors = make_qkv(q_len=LENGTH, k_len=LENGTH)
    cases = [(tensors, FLOATS[name](number)) for number in SEQUENCE]
    assert assert_each_equal(function, cases, dynamic) <= 2


@static_or_dynamic
def test_two_floats_of_one_call_do_not_change_places(dynamic):
    def function(x, mechanism, scale):
        return rg.attention(x, x, x, pattern="causal", mechanism=mechanism, scale=scale)

    inside = torch.compile(function, fullgraph=True, backend="eager", dynamic=dynamic)
    x = torch.randn(1, 2, 5, 4)
    for scale, rate in ((0.5, 0.75), (0.25, 1.5), (3.0, 0.125)):
        mechanism = m.Lightning(rate)
        assert torch.equal(inside(x, mechanism, scale), function(x, mechanism, scale))


def examples(name: str) -> list[p.Pattern]:
    """Patterns of one class that differ in their numbers."""
    places = Places(2, HEADS, LENGTH, LENGTH, (0,))
    by_text = {}
    for seed in range(20):
        pattern = build(plain_leaf(random.Random(seed), name, LENGTH), places)
        by_text[str(pattern)] = pattern
    return list(by_text.values())[:3]  # the third may have a graph of numbers that change


@pytest.mark.each_value
@static_or_dynamic
@pytest.mark.parametrize("name", sorted(name for name, leaf in LEAVES.items() if leaf.readable))
def test_the_numbers_of_a_pattern_may_change(name, dynamic):
    def function(q, k, v, pattern):
        return rg.attention(q, k, v, pattern=pattern)

    inside = torch.compile(function, fullgraph=True, backend="eager", dynamic=dynamic)
    tensors = make_qkv(q_len=LENGTH, k_len=LENGTH)
    for pattern in examples(name):
        results = answers(inside, tensors, pattern)
        assert all(map(torch.equal, results, answers(function, tensors, pattern))), pattern


SLOPES = [[share / head for head in range(1, 1 + HEADS)] for share in SEQUENCE]
BIASES: dict[str, dict[str, tuple[Callable[[Any], b.Bias], list[Any]]]] = {
    "ALiBi": {"slopes": (b.ALiBi, SLOPES)},
    "T5Relative": {
        "buckets": (lambda buckets: b.T5Relative(HEADS, buckets=buckets), [8, 12, 32]),
        "max_distance": (lambda most: b.T5Relative(HEADS, 8, max_distance=most), [5, 9, 16]),
        "bidirectional": (lambda both: b.T5Relative(HEADS, 8, bidirectional=both), [False, True]),
    },
    "GridRelative": {
        "shape": (lambda shape: b.GridRelative(HEADS, shape, 2), [(3, 4), (4, 3), (2, 6)]),
        "window": (lambda window: b.GridRelative(HEADS, (3, 4), window), [1, 2]),
    },
}
NO_NUMBERS = {"Bias", "Forgetting"}  # a base class; a tensor
PLACES = [(kind, name) for kind, of_kind in BIASES.items() for name in of_kind]


def test_every_number_of_every_bias_is_in_the_table():
    assert set(BIASES) == set(b.__all__) - NO_NUMBERS
    for kind, of_kind in BIASES.items():
        taken = set(inspect.signature(getattr(b, kind)).parameters)
        assert set(of_kind) == taken - {"heads"}  # that of the call


@pytest.mark.each_value
@static_or_dynamic
@pytest.mark.parametrize(("kind", "name"), PLACES)
def test_a_number_of_a_bias_may_change(kind, name, dynamic):
    make, values = BIASES[kind][name]
    length = 12 if kind == "GridRelative" else LENGTH

    def function(q, k, v, bias):
        pattern = bias.pattern if isinstance(bias, b.GridRelative) else "causal"
        return rg.attention(q, k, v, pattern=pattern, bias=bias)

    tensors = make_qkv(q_len=length, k_len=length)
    torch.manual_seed(3)
    cases = [(tensors, make(value)) for value in values]
    compiled = assert_each_equal(function, cases, dynamic, "eager")
    assert kind != "ALiBi" or compiled <= 2
