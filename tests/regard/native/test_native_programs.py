"""Programs compute layers over a few rows as the formulas in float64 do, row by row with the same bits."""

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from regard.backends.native.bands import EVERY_KEY_BEFORE
from regard.backends.native.library import Library
from regard.backends.native.program import (
    MOST_ROWS,
    MOST_STEPS,
    Attending,
    Beam,
    Choice,
    HeadSizes,
    Panels,
    Program,
    Written,
)
from regard.errors import RegardError
from regard.positions import Rotary

from .calls import AVX2, BEST

SIZES = (1, 2, 7, 13, 16, 31, 32, 33, 47, 64, 67, 101)
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


def run_on(program: Program, rows: int, given: dict[int, torch.Tensor], **options: Any) -> bool:
    """Run a program whose buffers are these tensors."""
    for buffer, tensor in given.items():
        program.give(buffer, tensor)
    return program.run(rows, **{"place": 0, **options})


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert expected.dtype == torch.float64
    torch.testing.assert_close(
        found.double(), expected, rtol=2e-5, atol=2e-6 * (1 + expected.abs().max().item())
    )


class RandomFeedForward:
    """Norm, projection, activation, product with a gate, and a projection that is added to x: a feed-forward."""

    def __init__(self, draw: random.Random) -> None:
        self.dim = draw.choice(SIZES)
        self.hidden = draw.choice(SIZES)
        self.activation = draw.choice([*ACTIVATIONS])
        self.has_bias = draw.random() < 0.7
        self.norm = torch.randn(2, self.dim)
        self.is_centred = draw.random() < 0.5
        self.widen = torch.randn(self.hidden, self.dim)
        self.gate = torch.randn(self.hidden, self.dim)
        self.narrow = torch.randn(self.dim, self.hidden)
        self.biases = [
            torch.randn(n) if self.has_bias else None for n in (self.hidden, self.hidden, self.dim)
        ]

    def program(self, library: Library) -> tuple[Program, int]:
        """The program and the buffer of x."""
        program = Program(library)
        x, normed = program.buffer(self.dim), program.buffer(self.dim)
        gate, hidden = program.buffer(self.hidden), program.buffer(self.hidden)
        if self.is_centred:
            program.norm(x, normed, *self.norm, epsilon=1e-5)
        else:
            program.rms_norm(x, normed, self.norm[0], epsilon=1e-5)
        program.project(normed, gate, self.gate, self.biases[0])
        program.activate(gate, self.activation)
        program.project(normed, hidden, self.widen, self.biases[1])
        program.multiply(gate, hidden)
        program.project(hidden, x, self.narrow, self.biases[2], adds=True)
        assert program.finish()
        return program, x

    def expected(self, x: torch.Tensor) -> torch.Tensor:
        x = x.double()
        biases = [None if bias is None else bias.double() for bias in self.biases]
        if self.is_centred:
            normed = F.layer_norm(x, (self.dim,), *self.norm.double(), 1e-5)
        else:
            normed = F.rms_norm(x, (self.dim,), self.norm[0].double(), 1e-5)
        gate = ACTIVATIONS[self.activation](F.linear(normed, self.gate.double(), biases[0]))
        hidden = gate * F.linear(normed, self.widen.double(), biases[1])
        return x + F.linear(hidden, self.narrow.double(), biases[2])


def test_a_feed_forward_has_the_numbers_of_its_formula(native: Library) -> None:
    draw = random.Random(3)
    for _ in range(60):
        stack = RandomFeedForward(draw)
        rows = draw.choice([1, 2, 3, 4, 5, 11, MOST_ROWS])
        program, buffer = stack.program(native)
        x = torch.randn(rows, stack.dim)
        expected = stack.expected(x)
        assert run_on(program, rows, {buffer: x})
        if stack.dim > 1:  # the norm of a single number multiplies rounding without a limit
            assert_close(x, expected)


def test_a_row_has_the_bits_that_it_has_alone_with_any_registers(native: Library) -> None:
    draw = random.Random(4)
    for _ in range(30):
        stack = RandomFeedForward(draw)
        program, buffer = stack.program(native)
        x = torch.randn(7, stack.dim)
        together = x.clone()
        assert run_on(program, 7, {buffer: together})
        native.handle.rg_use_instructions(AVX2)
        narrow = x.clone()
        assert run_on(program, 7, {buffer: narrow})
        native.handle.rg_use_instructions(BEST)
        for row in range(7):
            alone = x[row : row + 1].clone()
            assert run_on(program, 1, {buffer: alone})
            assert torch.equal(alone[0], together[row])
        assert torch.equal(narrow, together)


def in_panels(matrix: torch.Tensor, width: int) -> torch.Tensor:
    """A matrix (outputs, inputs) in panels, (outputs / width, inputs, width)."""
    return matrix.unflatten(0, (-1, width)).mT.contiguous()


@pytest.mark.parametrize("rows", [1, 2, 5, 11, 12, 13, 23, 59, MOST_ROWS])
@pytest.mark.parametrize(("width", "panels", "inputs"), [(32, 3, 1), (64, 1, 67), (96, 2, 31)])
@pytest.mark.parametrize("adds", [False, True])
def test_a_matrix_in_panels_has_the_product_of_its_formula_and_a_row_its_bits(
    native: Library, rows: int, width: int, panels: int, inputs: int, adds: bool
) -> None:
    torch.manual_seed(rows)
    outputs = width * panels
    matrix = torch.randn(outputs, inputs)
    bias = torch.randn(outputs) if rows % 2 else None
    weights = in_panels(matrix, width)
    program = Program(native)
    x, y = program.buffer(inputs), program.buffer(outputs)
    program.project_panels(
        x, y, Panels(weights.data_ptr(), outputs, inputs, width), bias, adds=adds
    )
    assert program.finish()
    numbers = torch.randn(rows, inputs)
    held = torch.randn(rows, outputs)
    product = held.clone()
    assert run_on(program, rows, {x: numbers, y: product})
    expected = F.linear(numbers.double(), matrix.double(), None if bias is None else bias.double())
    assert_close(product, expected + held.double() if adds else expected)

    native.handle.rg_use_instructions(AVX2)
    narrow = held.clone()
    assert run_on(program, rows, {x: numbers, y: narrow})
    native.handle.rg_use_instructions(BEST)
    assert torch.equal(narrow, product)
    alone = held[-1:].clone()
    assert run_on(program, 1, {x: numbers[-1:].clone(), y: alone})
    assert torch.equal(alone[0], product[-1])


@pytest.mark.parametrize(
    ("width", "outputs", "numbers"), [(48, 96, 96), (64, 96, 96), (0, 96, 96), (32, 96, 95)]
)
def test_panels_that_do_not_fit_are_refused(
    native: Library, width: int, outputs: int, numbers: int
) -> None:
    weights = torch.randn(96, 7)
    program = Program(native)
    x, y = program.buffer(7), program.buffer(outputs)
    program.project_panels(x, y, Panels(weights.data_ptr(), numbers, 7, width), None)
    assert program.finish()
    with pytest.raises(RegardError):
        run_on(program, 2, {x: torch.randn(2, 7), y: torch.randn(2, outputs)})


def test_gelu_has_the_numbers_of_its_formula_far_out_too(native: Library) -> None:
    program = Program(native)
    buffer = program.buffer(4099)
    program.activate(buffer, "gelu")
    assert program.finish()
    x = torch.linspace(-9, 9, 4099)
    x[:6] = torch.tensor([-0.0, 1e-30, -1e-30, 40.0, math.inf, math.nan])
    expected = F.gelu(x.double())
    assert run_on(program, 1, {buffer: x})
    torch.testing.assert_close(x.double(), expected, rtol=1e-6, atol=5e-7, equal_nan=True)


class RandomText:
    """Attention to the entries of each row's own text, position after position."""

    def __init__(self, draw: random.Random) -> None:
        self.kv_heads = draw.choice([1, 2, 3])
        self.heads = self.kv_heads * draw.choice([1, 2])
        self.head_dim = draw.choice([2, 8, 14, 16])
        self.rows = draw.choice([1, 2, 5])
        self.back = draw.choice([0, 2, 7, EVERY_KEY_BEFORE])
        self.room = 12
        self.softcap = draw.choice([None, 3.0])
        sizes = (self.rows, self.kv_heads, self.room, self.head_dim)
        self.keys = torch.full(sizes, math.nan)  # nothing behind the text may be read
        self.values = self.keys.clone()

    def program(self, library: Library) -> tuple[Program, list[int]]:
        """The program and the buffers of queries, keys, values and outputs."""
        program = Program(library)
        width, kv_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
        buffers = [program.buffer(size) for size in (width, kv_width, kv_width, width)]
        queries, keys, values, into = buffers
        program.rotate(queries, self.head_dim)
        program.rotate(keys, self.head_dim)
        sizes = HeadSizes(self.heads, self.kv_heads, self.head_dim, self.head_dim)
        attending = Attending(sizes, 0.3, self.softcap)
        attending.read_text(self.keys, self.values)
        program.attend_to_text(queries, keys, values, into, attending, self.back)
        assert program.finish()
        return program, buffers

    def expected(self, vectors: list[torch.Tensor], place: int) -> torch.Tensor:
        """Outputs (rows, width) at a place; the vectors are the queries, keys and values (rows, places, width)."""
        q, k, v = (heads_of(x[:, : place + 1], self.head_dim) for x in vectors)
        places = torch.arange(place + 1)
        first = max(0, place - self.back)
        q = Rotary().rotate(q, places)[:, :, place:]  # (rows, heads, 1, head_dim)
        k = (
            Rotary()
            .rotate(k, places)[:, :, first:]
            .repeat_interleave(self.heads // self.kv_heads, 1)
        )
        v = v[:, :, first:].repeat_interleave(self.heads // self.kv_heads, 1)
        scores = q @ k.mT * 0.3
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(1)


def heads_of(x: torch.Tensor, head_dim: int) -> torch.Tensor:
    """(rows, places, width) -> (rows, heads, places, head_dim) in float64."""
    rows, places, _ = x.shape
    return x.double().view(rows, places, -1, head_dim).transpose(1, 2)


def test_steps_of_a_text_append_rotated_keys_and_look_at_the_last_entries(native: Library) -> None:
    draw = random.Random(5)
    for _ in range(40):
        text = RandomText(draw)
        program, buffers = text.program(native)
        widths = [program.width(buffer) for buffer in buffers]
        vectors = [torch.randn(text.rows, text.room, width) for width in widths[:3]]
        for place in range(text.room):
            now = [x[:, place].clone() for x in vectors]
            output = torch.empty(text.rows, widths[3])
            cos, sin, positions = Rotary().turns_around(place, text.head_dim)
            assert place in positions
            program.rotate_by(cos[place], sin[place])
            given = dict(zip(buffers, [*now, output], strict=True))
            assert run_on(program, text.rows, given, place=place)
            assert_close(output, text.expected(vectors, place))


@pytest.mark.parametrize("masked", [False, True])
def test_neighbouring_rows_read_one_source(native: Library, masked: bool) -> None:
    draw = random.Random(6)
    for _ in range(40):
        texts, readers, keys = draw.choice([1, 3]), draw.choice([1, 2, 5]), draw.choice([1, 7, 37])
        kv_heads, heads, head_dim, v_dim = draw.choice([(2, 4, 8, 6), (3, 3, 16, 16)])
        k = torch.randn(texts, keys, kv_heads, head_dim).transpose(1, 2)
        v = torch.randn(texts, kv_heads, keys, v_dim)
        mask = torch.zeros(texts, 1, 1, keys)
        if masked:
            mask[torch.rand(mask.shape) < 0.4] = -math.inf
            mask[..., 0] = 0
        program = Program(native)
        queries, into = program.buffer(heads * head_dim), program.buffer(heads * v_dim)
        attending = Attending(HeadSizes(heads, kv_heads, head_dim, v_dim), 0.3, None)
        attending.read(k, v, readers, mask if masked else None)
        program.attend(queries, into, attending)
        assert program.finish()
        q = torch.randn(texts * readers, heads * head_dim)
        output = torch.empty(texts * readers, heads * v_dim)
        assert run_on(program, texts * readers, {queries: q, into: output})

        heads_of_q = q.double().view(texts, readers, heads, head_dim).transpose(1, 2)
        repeats = heads // kv_heads
        all_k, all_v = (x.double().repeat_interleave(repeats, 1) for x in (k, v))
        weights = (heads_of_q @ all_k.mT * 0.3 + mask.double()).softmax(-1)
        assert_close(output, (weights @ all_v).transpose(1, 2).reshape(texts * readers, -1))


class RandomSources:
    """Attention among the rows of each text, whose queries and keys are rotated to their places."""

    def __init__(self, draw: random.Random) -> None:
        self.length = draw.choice([1, 2, 5, 7, 13, 17, 23])
        self.texts = draw.randint(1, MOST_ROWS // self.length)
        self.kv_heads = draw.choice([1, 2, 3])
        self.heads = self.kv_heads * draw.choice([1, 2])
        self.head_dim = draw.choice([2, 8, 14, 16])
        self.v_dim = draw.choice([1, 7, self.head_dim])
        self.softcap = draw.choice([None, 3.0])
        self.bounds = None
        self.allowed = torch.ones(self.length, self.length, dtype=torch.bool)
        if draw.random() < 0.7:
            before, after = draw.choice([(0, 0), (2, 2), (1, 5), (self.length, 0)])
            places = torch.arange(self.length)
            lo = (places - before).clamp(min=0)
            hi = (places + after + 1).clamp(max=self.length)
            self.bounds = (lo.int(), hi.int())
            self.allowed = (places >= lo[:, None]) & (places < hi[:, None])

    @property
    def rows(self) -> int:
        return self.texts * self.length

    def program(self, library: Library) -> tuple[Program, list[int], Attending]:
        """The program and the buffers of queries, keys, values and outputs."""
        program = Program(library)
        widths = (
            self.heads * self.head_dim,
            self.kv_heads * self.head_dim,
            self.kv_heads * self.v_dim,
            self.heads * self.v_dim,
        )
        buffers = [program.buffer(width) for width in widths]
        queries, keys, values, into = buffers
        program.rotate(queries, self.head_dim)
        program.rotate(keys, self.head_dim)
        sizes = HeadSizes(self.heads, self.kv_heads, self.head_dim, self.v_dim)
        attending = Attending(sizes, 0.3, self.softcap)
        program.attend_among_rows(queries, keys, values, into, attending)
        assert program.finish()
        program.stand_at(self.length)
        cos, sin, _ = Rotary().turns_around(0, self.head_dim)
        program.rotate_by(cos, sin)
        attending.read_rows(self.texts, self.length, self.bounds)
        return program, buffers, attending

    def vectors(self, program: Program, buffers: list[int]) -> list[torch.Tensor]:
        """Random queries, keys and values, and room for the outputs."""
        vectors = [torch.randn(self.rows, program.width(buffer)) for buffer in buffers]
        vectors[-1].fill_(math.nan)
        return vectors

    def expected(self, vectors: list[torch.Tensor]) -> torch.Tensor:
        dims = (self.head_dim, self.head_dim, self.v_dim)
        q, k, v = (
            heads_of(x.view(self.texts, self.length, -1), dim)
            for x, dim in zip(vectors[:3], dims, strict=True)
        )
        places = torch.arange(self.length)
        group = self.heads // self.kv_heads
        k = Rotary().rotate(k, places).repeat_interleave(group, 1)
        scores = Rotary().rotate(q, places) @ k.mT * 0.3
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        weights = scores.masked_fill(~self.allowed, -math.inf).softmax(-1)
        heads = weights @ v.repeat_interleave(group, 1)
        return heads.transpose(1, 2).reshape(self.rows, -1)


def test_rows_of_a_text_look_at_each_other(native: Library) -> None:
    draw = random.Random(13)
    for _ in range(80):
        sources = RandomSources(draw)
        program, buffers, _ = sources.program(native)
        vectors = sources.vectors(program, buffers)
        expected = sources.expected(vectors)
        assert run_on(program, sources.rows, dict(zip(buffers, vectors, strict=True)))
        assert_close(vectors[-1], expected)


def test_a_program_reads_texts_of_other_lengths_one_after_the_other(native: Library) -> None:
    sources = RandomSources(random.Random(14))
    program, buffers, attending = sources.program(native)
    for texts, length in ((3, 7), (1, 13), (2, 1), (5, 7)):
        sources.texts, sources.length = texts, length
        sources.allowed = torch.ones(length, length, dtype=torch.bool)
        program.stand_at(length)
        attending.read_rows(texts, length, None)
        vectors = sources.vectors(program, buffers)
        expected = sources.expected(vectors)
        assert run_on(program, sources.rows, dict(zip(buffers, vectors, strict=True)))
        assert_close(vectors[-1], expected)


def damage_places(program: Program, _: Attending) -> None:
    program._struct.places = 0


def damage_keys(program: Program, _: Attending) -> None:
    program._operation_structs[2].keys = 4


def damage_values(program: Program, _: Attending) -> None:
    program._operation_structs[2].values = -1


def damage_kind_of_keys(program: Program, _: Attending) -> None:
    program._operation_structs[2].back = -3


def damage_texts(_: Program, attending: Attending) -> None:
    attending.struct.batch += 1


def damage_length(_: Program, attending: Attending) -> None:
    attending.struct.q_len = 0


def damage_heads(_: Program, attending: Attending) -> None:
    attending.struct.kv_heads = 1 << 30


def damage_width_of_values(program: Program, _: Attending) -> None:
    program._operation_structs[2].values = 0  # as wide as the queries


def damage_run(_: Program, attending: Attending) -> None:
    attending._run[1] += 1  # one key more than there are


def damage_bounds(_: Program, attending: Attending) -> None:
    attending._run[2] = 1  # BOUNDED
    attending._schedule.bounds = 1


@pytest.mark.parametrize(
    "damage",
    [
        damage_places,
        damage_keys,
        damage_values,
        damage_kind_of_keys,
        damage_texts,
        damage_length,
        damage_heads,
        damage_width_of_values,
        damage_run,
        damage_bounds,
    ],
)
def test_damaged_attention_among_rows_is_refused_and_writes_nothing(
    native: Library, damage: Callable[[Program, Attending], None]
) -> None:
    draw = random.Random(15)
    sources = RandomSources(draw)
    while sources.bounds is not None or sources.heads == sources.kv_heads or sources.length < 5:
        sources = RandomSources(draw)
    program, buffers, attending = sources.program(native)
    vectors = [torch.full_like(x, 0.5) for x in sources.vectors(program, buffers)]
    given = dict(zip(buffers, vectors, strict=True))
    damage(program, attending)
    with pytest.raises(RegardError):
        run_on(program, sources.rows, given)
    assert all(bool((x == 0.5).all()) for x in vectors)


def test_rows_of_a_table_are_moved_by_the_vector_of_their_place(native: Library) -> None:
    table = torch.randn(11, 7)
    vectors = torch.randn(5, 7)
    program = Program(native)
    x = program.buffer(7)
    embedding = program.embed(table, 1.5, x)
    assert program.finish()
    program.add_to_rows(embedding, vectors)
    ids = torch.randint(0, 11, (13,))
    rows = torch.full((13, 7), math.nan)
    program.stand_at(5)
    assert run_on(program, 13, {x: rows}, ids=ids)
    assert torch.equal(rows, table[ids] * 1.5 + vectors[torch.arange(13) % 5])
    program.stand_at(1)
    assert run_on(program, 13, {x: rows}, ids=ids)
    assert torch.equal(rows, table[ids] * 1.5 + vectors[0])
    rows.fill_(0.5)
    for places in (6, 0, -1, 2**31 - 1):  # there are 5 vectors
        program.stand_at(places)
        with pytest.raises(RegardError):
            run_on(program, 13, {x: rows}, ids=ids)
    assert torch.equal(rows, torch.full((13, 7), 0.5))


def test_texts_are_not_continued_at_several_places(native: Library) -> None:
    pairs = RandomPairs(random.Random(16), native)
    pairs.vectors = None
    pairs.program.stand_at(2)
    with pytest.raises(RegardError, match="a size is below 1"):
        pairs.write([1, 2], 3)


def test_rows_of_a_table_are_scaled_and_moved(native: Library) -> None:
    table = torch.randn(11, 7)
    vector = torch.randn(7)
    program = Program(native)
    x = program.buffer(7)
    embedding = program.embed(table, 1.5, x)
    assert program.finish()
    program.add_to_rows(embedding, vector)
    rows = torch.empty(3, 7)
    assert run_on(program, 3, {x: rows}, ids=torch.tensor([10, 0, 4]))
    assert torch.equal(rows, table[[10, 0, 4]] * 1.5 + vector)
    with pytest.raises(RegardError, match="a size is below 1"):
        run_on(program, 3, {x: rows}, ids=torch.tensor([10, 0]))
    for wrong in (11, -1):
        with pytest.raises(IndexError):
            run_on(program, 3, {x: rows}, ids=torch.tensor([10, wrong, 4]))


def test_weights_are_read_where_they_lie_and_others_are_refused(native: Library) -> None:
    weight = torch.nn.Parameter(torch.randn(5, 7))
    program = Program(native)
    x, y = program.buffer(7), program.buffer(5)
    program.project(x, y, weight, None)
    assert program.finish()
    vector, output = torch.randn(1, 7), torch.empty(1, 5)

    def follows() -> bool:
        if not program.follow_weights():
            return False
        assert run_on(program, 1, {x: vector, y: output})
        assert_close(output, vector.double() @ weight.detach().double().T)
        return True

    assert follows()
    weight.data.copy_(torch.randn(5, 7))  # neither address nor version changes
    assert follows()
    weight.data = torch.randn(5, 7)
    assert follows()
    for other in (torch.randn(7, 5).t(), torch.randn(5, 7).double(), torch.randn(5, 7).bfloat16()):
        weight.data = other
        assert not follows()
        assert not follows()  # also when it is asked again
    weight.data = torch.randn(5, 7)
    assert follows()


def test_an_attention_with_nan_is_told(native: Library) -> None:
    program = Program(native)
    queries, into = program.buffer(8), program.buffer(8)
    attending = Attending(HeadSizes(2, 2, 4, 4), 0.5, None)
    k = torch.randn(1, 2, 5, 4)
    attending.read(k, k, 1)
    program.attend(queries, into, attending)
    assert program.finish()
    output = torch.empty(1, 8)
    assert run_on(program, 1, {queries: torch.randn(1, 8), into: output})
    k[0, 1, 3, 2] = math.nan
    assert not run_on(program, 1, {queries: torch.randn(1, 8), into: output})


def test_what_does_not_fit_is_refused_before_anything_is_computed(native: Library) -> None:
    program = Program(native)
    x, y = program.buffer(7), program.buffer(5)
    program.activate(x, "relu")
    program.project(x, y, torch.randn(5, 6), None)  # too few numbers
    assert program.finish()
    vector = -torch.ones(1, 7)
    with pytest.raises(RegardError, match="a tensor has no memory"):
        run_on(program, 1, {x: vector})
    assert torch.equal(vector, -torch.ones(1, 7))
    for rows in (0, 2, MOST_ROWS + 1):  # the buffer that was given has one row
        with pytest.raises(RegardError, match="a size is below 1"):
            program.run(rows, 0)

    program = Program(native)
    buffers = [program.buffer(8) for _ in range(4)]
    attending = Attending(HeadSizes(2, 2, 4, 4), 0.5, None)
    entries = torch.zeros(1, 2, 3, 4)
    attending.read_text(entries, entries)
    program.attend_to_text(*buffers, attending, EVERY_KEY_BEFORE)
    assert program.finish()
    vectors = [torch.zeros(2, 8) for _ in buffers]
    for buffer, given in zip(buffers, vectors, strict=True):
        program.give(buffer, given)
    assert program.run(1, 2)
    with pytest.raises(RegardError, match="strides lead outside"):
        program.run(1, 3)  # there is no room for a fourth entry
    with pytest.raises(RegardError, match="a size is below 1"):
        program.run(2, 0)  # the text has one row


class RandomPairs:
    """A program whose logits depend on the last id and its position alone: (1.5 · table[id] + vector) weightᵀ."""

    def __init__(self, draw: random.Random, native: Library) -> None:
        dim = draw.choice(SIZES)
        self.vocab_size = draw.choice((7, 13, 47, 131))
        self.table = torch.randn(self.vocab_size, dim)
        self.weight = torch.randn(self.vocab_size, dim)
        self.vectors = torch.randn(11, dim) if draw.random() < 0.7 else None
        self.program = Program(native)
        x = self.program.buffer(dim)
        self.logits = self.program.buffer(self.vocab_size)
        self.program.embed(self.table, 1.5, x)
        self.program.project(x, self.logits, self.weight, None)
        assert self.program.finish()

    def log_probs(self, last_id: int, step: int, never: list[int]) -> torch.Tensor:
        x = 1.5 * self.table[last_id].double()
        if self.vectors is not None:
            x = x + self.vectors[step].double()
        logits = self.weight.double() @ x
        logits[never] = -torch.inf
        return logits.log_softmax(0)

    def write(self, ids: list[int], steps: int, **choice: Any) -> Written:
        logits = torch.empty(len(ids), self.vocab_size)
        self.program.give(self.logits, logits)
        options = {"never": torch.tensor([], dtype=torch.int64), "end": None} | choice
        vectors = None if self.vectors is None else self.vectors[:steps].contiguous()
        return self.program.write(
            self.logits, torch.tensor(ids), 0, Choice(steps, **options), vectors
        )


def test_the_likeliest_ids_are_written_until_a_text_may_end(native: Library) -> None:
    draw = random.Random(8)
    ended = 0
    for _ in range(60):
        pairs = RandomPairs(draw, native)
        ids = [draw.randrange(pairs.vocab_size) for _ in range(draw.choice([1, 2, 5]))]
        never = draw.sample(range(pairs.vocab_size), 3)
        end = draw.randrange(pairs.vocab_size)
        steps = draw.randint(1, 11)
        written = pairs.write(ids, steps, never=torch.tensor(never), end=end)
        last_ids = ids
        for step, (found, log_probs) in enumerate(written.steps()):
            expected = [pairs.log_probs(last, step, never).max(0) for last in last_ids]
            assert found == [int(best.indices) for best in expected]
            values = torch.stack([best.values for best in expected])
            assert_close(torch.tensor(log_probs), values)
            last_ids = found
            assert end not in found
        count = len(written.ids)
        assert written.is_scored == (count < steps)
        if written.is_scored:
            ended += 1
            likeliest = [int(pairs.log_probs(last, count, never).argmax()) for last in last_ids]
            assert end in likeliest
    assert 5 < ended < 55


def test_a_beam_is_written_as_the_formula_has_it(native: Library) -> None:
    draw = random.Random(9)
    steps_written = 0
    for _ in range(60):
        pairs = RandomPairs(draw, native)
        texts, beam = draw.choice([(1, 2), (1, 5), (3, 4)])
        ids = [draw.randrange(pairs.vocab_size) for _ in range(texts * beam)]
        totals = -torch.rand(texts, beam, dtype=torch.float64).sort().values
        floors = [draw.choice([-math.inf, -4.0]) for _ in range(texts)]
        rows = Beam(totals, torch.tensor(floors, dtype=torch.float64))
        end = draw.randrange(pairs.vocab_size)
        steps = draw.randint(1, 11)
        written = pairs.write(ids, steps, end=end, beam=rows)
        assert torch.equal(rows.totals, totals)  # the caller's own
        assert written.parents is not None
        last_ids = ids
        before = totals.tolist()
        for step in range(len(written.ids) + written.is_scored):
            best: list[list[tuple[float, int, int, float]]] = []
            for text in range(texts):
                candidates: list[tuple[float, int, int, float]] = []
                for number, total in enumerate(before[text]):
                    row = text * beam + number
                    log_probs = pairs.log_probs(last_ids[row], step, []).tolist()
                    for next_id, log_prob in enumerate(log_probs):
                        candidates.append((total + log_prob, row, next_id, log_prob))
                best.append(sorted(candidates, reverse=True)[:beam])
            if step == len(written.ids):  # it is left to the search
                ends = [next_id == end for of_text in best for _, _, next_id, _ in of_text]
                falls = [
                    of_text[0][0] <= floor for of_text, floor in zip(best, floors, strict=True)
                ]
                assert any(ends) or any(falls)
                break
            assert all(of_text[0][0] > floor for of_text, floor in zip(best, floors, strict=True))
            expected = [candidate for of_text in best for candidate in of_text]
            assert written.ids[step].tolist() == [next_id for _, _, next_id, _ in expected]
            assert written.parents[step].tolist() == [row for _, row, _, _ in expected]
            of_ids = torch.tensor([log_prob for *_, log_prob in expected], dtype=torch.float64)
            assert_close(written.log_probs[step], of_ids)
            last_ids = written.ids[step].tolist()
            before = [[total for total, *_ in of_text] for of_text in best]
            steps_written += 1
    assert steps_written > 60


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_nothing_is_chosen_from_logits_that_are_not_finite(native: Library, number: float) -> None:
    pairs = RandomPairs(random.Random(10), native)
    [[first], [second]] = pairs.write([3], 2).ids.tolist()
    assert len({3, first, second}) == 3
    pairs.table[first] = number
    for beam in (None, Beam(torch.zeros(1, 1).double(), torch.tensor([-math.inf]).double())):
        written = pairs.write([3], 9, beam=beam)
        assert written.ids.tolist() == [[first]]
        assert written.is_scored


def test_writing_that_does_not_fit_is_refused(native: Library) -> None:
    pairs = RandomPairs(random.Random(11), native)
    assert pairs.write([1, 2], 3).ids.shape == (3, 2)
    with pytest.raises(IndexError):
        pairs.write([pairs.vocab_size, 0], 3)
    with pytest.raises(IndexError):
        pairs.write([1, 2], 3, never=torch.tensor([-1]))
    pairs.vectors = None
    with pytest.raises(RegardError):
        pairs.write([1, 2], MOST_STEPS + 1)
    floor = torch.zeros(1).double()
    for beam in (
        Beam(torch.zeros(1, 3).double(), floor),
        Beam(torch.zeros(2, 2).double(), floor),
        Beam(torch.zeros(1, 2), floor),
        Beam(torch.zeros(1, 2).double(), floor[:0]),
        Beam(torch.zeros(2, 1).double(), floor),
    ):
        with pytest.raises(RegardError):
            pairs.write([1, 2], 3, beam=beam)
    with pytest.raises(RegardError):
        pairs.write([1, 2], 3, never=torch.tensor([1], dtype=torch.int32))


def test_a_beam_of_one_row_continues_itself(native: Library) -> None:
    pairs = RandomPairs(random.Random(12), native)
    alone = Beam(torch.zeros(2, 1).double(), torch.full((2,), -math.inf).double())
    written = pairs.write([1, 2], 5, beam=alone)
    assert written.parents is not None
    assert written.parents.tolist() == [[0, 1]] * 5
    assert torch.equal(written.ids, pairs.write([1, 2], 5).ids)
