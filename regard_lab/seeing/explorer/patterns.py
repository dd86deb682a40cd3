"""Which query may look at which key, for the explorer: the pairs of a pattern, their number, and how it grows."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch

from regard.arguments import a_list, of_kind, whole
from regard.backends import BACKENDS
from regard.core.call import make_problem
from regard.core.plan import make_plan
from regard.core.tensors import Outline
from regard.errors import ArgumentError, RegardError
from regard.patterns import Pattern
from regard.patterns.drawing import drawn_pairs
from regard.patterns.grid import Grid
from regard_lab.models import (
    LanguageModel,
    RecurrentTranslator,
    TextEncoder,
    TranslationTransformer,
)
from regard_lab.seeing.explorer.records import Growth, PatternMap, PatternPanel

SINGLE = 512  # the longest side of which every pair is shown by itself
SIDE = 256  # tiles along the longest side of a larger one
LENGTHS = (256, 1024, 4096, 16384, 65536)
# Of patterns that are not one band: planning a longer call may take a minute.
LONGEST_PLANNED = 4096
HEAD_DIM = 64  # of the call that is planned
MOST_PANELS = 32  # heads that differ


def map_pattern(
    pattern: Pattern,
    rows: Sequence[str] | int,
    columns: Sequence[str] | int | None = None,
    *,
    name: str = "",
    q_start: int | None = None,
) -> PatternMap:
    """The pairs that a pattern allows, their number, and their number at other lengths.

    Args:
        pattern: a pattern; of one that differs by batch row, the first row is shown.
        rows: the words of the queries, or their number.
        columns: the words of the keys, or their number; those of the queries by default.
        name: where the pattern is used.
        q_start: position of the first query; by default the last query is aligned with the last key.

    Raises:
        ArgumentError: no query or key, or more than 32 heads that differ.
        ShapeError: a pattern that holds a tensor of another size.

    >>> from regard.patterns import Causal
    >>> shown = map_pattern(Causal(), 4)
    >>> shown.panels[0].states.tolist()[1], shown.panels[0].pairs, shown.growth[0].computed
    ([2, 2, 0, 0], 10, 1.0)
    """
    of_kind("pattern", pattern, Pattern, "a Pattern, such as parse('causal & strided(8)') returns")
    row_words, q_len = _sized("tokens", rows)
    column_words, k_len = (row_words, q_len) if columns is None else _sized("keys", columns)
    note = ""
    if pattern.varies_by_row:
        pattern = pattern.for_row(0)
        note = "The pattern differs by batch row; the first is shown."
    longest = max(q_len, k_len)
    tile = 1 if longest <= SINGLE else -(-longest // SIDE)
    panels = tuple(_panels(pattern, q_len, k_len, tile, q_start))
    if len(panels) > MOST_PANELS:
        raise ArgumentError(
            f"{len(panels)} heads differ in {pattern}; a page shows at most {MOST_PANELS}"
        )
    return PatternMap(
        name=name or "Pattern",
        text=str(pattern),
        rows=row_words,
        columns=column_words,
        q_len=q_len,
        k_len=k_len,
        q_start=k_len - q_len if q_start is None else q_start,
        tile=tile,
        panels=panels,
        growth=tuple(_growth(pattern, q_len, k_len, q_start)),
        note=note,
    )


def patterns_used(
    model: TranslationTransformer | RecurrentTranslator | LanguageModel | TextEncoder,
    source: Sequence[str],
    target: Sequence[str] = (),
) -> tuple[PatternMap, ...]:
    """The patterns of a model's layers on a text; layers with the same pattern are one entry.

    Args:
        source: the sub-words that the model reads.
        target: of a translator, the sub-words that its decoder reads.
    """
    maps = []
    for stack in _stacks(model, source, target):
        for pattern, layers in groupby(enumerate(stack.patterns), key=lambda layer: layer[1]):
            numbers = [number for number, _ in layers]
            where = f"layer {numbers[0]}"
            if len(numbers) > 1:
                where = f"layers {numbers[0]} to {numbers[-1]}"
            name = f"{stack.name}, {where}"
            maps.append(
                map_pattern(pattern, stack.rows, stack.columns, name=name, q_start=stack.q_start)
            )
    return tuple(maps)


class _Stack(NamedTuple):
    """One kind of attention: the words of queries and keys, the position of the first query, a pattern by layer."""

    name: str
    rows: Sequence[str]
    columns: Sequence[str]
    q_start: int | None
    patterns: list[Pattern]


def _stacks(model: Any, source: Sequence[str], target: Sequence[str]) -> list[_Stack]:
    if isinstance(model, RecurrentTranslator):
        return [_Stack("Cross-attention", target, source, 0, [model.cell.attention.pattern])]
    if not isinstance(model, TranslationTransformer):
        patterns = [block.attention.pattern for block in model.blocks]
        return [_Stack("Self-attention", source, source, 0, patterns)]

    blocks: list[Any] = list(model.decoder)
    encoder = [block.attention.pattern for block in model.encoder]
    decoder = [block.self_attention.pattern for block in blocks]
    cross = [block.cross_attention.pattern for block in blocks]
    start = 0 if model.cross_pattern.compares_positions else None
    return [
        _Stack("Encoder self-attention", source, source, 0, encoder),
        _Stack("Decoder self-attention", target, target, 0, decoder),
        _Stack("Cross-attention", target, source, start, cross),
    ]


def _sized(name: str, words: Sequence[str] | int) -> tuple[tuple[str, ...], int]:
    if isinstance(words, int):
        return (), whole("length", words, 1)
    listed = tuple(a_list(name, words, str, "a list of words"))
    if not listed:
        raise ArgumentError(f"{name} has no words; a pattern needs at least one query and one key")
    return listed, len(listed)


def _panels(
    pattern: Pattern, q_len: int, k_len: int, tile: int, q_start: int | None
) -> Iterator[PatternPanel]:
    if tile == 1:
        for panel in drawn_pairs(pattern, q_len, k_len, q_start=q_start)[0]:
            pairs = int((panel.marks == 2).sum())
            yield PatternPanel(panel.heads, str(panel.pattern), panel.marks.to(torch.uint8), pairs)
        return

    heads: dict[str, list[int]] = {}
    for head in range(_heads(pattern, q_len, k_len, q_start)):
        heads.setdefault(str(pattern.for_head(head)), []).append(head)
    for text, numbers in heads.items():
        of_head = pattern.for_head(numbers[0])
        states = of_head.tiles(q_len, k_len, tile, q_start=q_start).states().to(torch.uint8)
        pairs = of_head.count(q_len, k_len, q_start=q_start)
        named = tuple(numbers) if pattern.varies_by_head else ()
        yield PatternPanel(named, text, states, pairs)


def _heads(pattern: Pattern, q_len: int, k_len: int, q_start: int | None) -> int:
    """How many heads differ; 1 where all are alike."""
    if not pattern.varies_by_head:
        return 1
    grid = Grid.whole(q_len, k_len, q_start)
    return pattern.evaluate(grid.block(grid.rows[:1], grid.keys)).shape[1]


def _growth(pattern: Pattern, q_len: int, k_len: int, q_start: int | None) -> Iterator[Growth]:
    """Counts at this size, then at other lengths; a pattern that holds a tensor has this size alone."""
    yield _count(pattern, q_len, k_len, q_start)
    if not pattern.by_value:
        return
    longest = LONGEST_PLANNED if pattern.canonical().band() is None else max(LENGTHS)
    for length in LENGTHS:
        if length <= longest and not length == q_len == k_len:
            yield _count(pattern, length, length, None)


def _count(pattern: Pattern, q_len: int, k_len: int, q_start: int | None) -> Growth:
    heads = _heads(pattern, q_len, k_len, q_start)
    cpu = torch.device("cpu")
    q = Outline((1, heads, q_len, HEAD_DIM), torch.float32, cpu, False)
    k = Outline((1, heads, k_len, HEAD_DIM), torch.float32, cpu, False)
    try:
        plan = make_plan(make_problem(q, k, k, pattern=pattern, q_start=q_start), BACKENDS)
        computed = float(plan.share_of_pairs_computed)
        backend = plan.backend
    except RegardError as error:  # no backend computes a call of this size
        computed = None
        backend = f"none: {error}"
    return Growth(
        length=q_len,
        pairs=pattern.count(q_len, k_len, q_start=q_start),
        of=heads * q_len * k_len,
        computed=computed,
        backend=backend,
    )
