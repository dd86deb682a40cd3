"""A pattern drawn with characters, one line for each query, and what a stack of layers learns from."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import chain
from textwrap import wrap

import torch
import torch.nn.functional as F

from regard.arguments import count_of, whole, yes_or_no
from regard.errors import ArgumentError
from regard.patterns.arguments import runs, words
from regard.patterns.base import Pattern

MAY_NOT, LEARNS, MAY_LOOK, SOME = SIGNS = "·□■▪"
PLAIN = ".o#+"  # the same in ASCII
LARGEST = 200
NARROWEST = 20  # characters


@dataclass(frozen=True, eq=False)
class Panel:
    """One drawing, of the heads that have the same pattern.

    Args:
        heads: their numbers; empty where all heads are alike.
        pattern: what they allow.
        marks: (q_len, k_len): 2 for an allowed pair, 1 for one that a stack of layers joins, 0 for neither.
    """

    heads: tuple[int, ...]
    pattern: Pattern
    marks: torch.Tensor

    @property
    def title(self) -> str:
        """The heads with their pattern; nothing where all heads are alike."""
        if not self.heads:
            return ""
        allowed = int((self.marks == 2).sum())
        named = f"head{'s' if len(self.heads) > 1 else ''} {words(runs(self.heads))}"
        return (
            f"{named}: {self.pattern}, {allowed:,} of {count_of(self.marks.numel(), 'pairs', ',')}"
        )


def draw(
    pattern: Pattern,
    q_len: int,
    k_len: int,
    *,
    q_start: int | None = None,
    layers: int = 1,
    width: int | None = None,
    plain: bool | None = None,
) -> str:
    """Lines of squares (may look) and dots (may not), queries down, keys across, with a ruler of positions.

    With more than one layer, empty squares are positions from which a query learns through other positions. Heads that
    differ are drawn one after the other. Patterns that differ by batch row are drawn for the first, which the title
    names. Lines longer than `width` are avoided: columns are drawn without spaces, and if that is not enough a
    character stands for several queries and keys. `plain` draws with # and . alone; by default each sign that standard
    output cannot write is plain, so that the drawing can be printed.

    >>> from regard.patterns import CausalWindow
    >>> print(draw(CausalWindow(2), 3, 3, layers=2))
    causal_window(2): 5 of 9 pairs, 6 through 2 layers
    ■ allowed, □ only through 2 layers
        0 1 2
      0 ■ · ·
      1 ■ ■ ·
      2 □ ■ ■
    """
    if not (1 <= q_len <= LARGEST and 1 <= k_len <= LARGEST):
        raise ArgumentError(
            f"{q_len} x {k_len} pairs do not fit a terminal; draw 1 to {LARGEST} each way"
        )
    width = None if width is None else max(whole("width", width), NARROWEST)
    panels, title = drawn_pairs(pattern, q_len, k_len, q_start=q_start, layers=layers)
    first = k_len - q_len if q_start is None else q_start
    margin = max(len(str(position)) for position in (first, first + q_len - 1, k_len - 1)) + 2
    room = 2 * k_len if width is None else width - margin - 1
    scale = -(-k_len // room)
    space = " " if scale == 1 and 2 * k_len - 1 <= room else ""
    lines = [f"{pattern}: {title}"]
    if scale > 1:
        through = f"{LEARNS} none, but some through {layers} layers, " if layers > 1 else ""
        lines.append(
            f"Each character stands for {scale} x {scale} pairs: {MAY_LOOK} all are allowed, {SOME} some, {through}"
            f"{MAY_NOT} none."
        )
    elif layers > 1:
        lines.append(f"{MAY_LOOK} allowed, {LEARNS} only through {layers} layers")
    if first and q_len > 1:
        lines.append(f"queries at positions {first} to {first + q_len - 1}")
    elif first:
        lines.append(f"a query at position {first}")
    lines = _wrapped(lines, width)
    for panel in panels:
        if panel.title:
            lines += ["", *_wrapped([panel.title], width)]
        lines.append(" " * (margin + 1) + _ruler(k_len, scale, space))
        for row, signs in enumerate(_signs(panel.marks, scale)):
            lines.append(f"{first + row * scale:>{margin}} {space.join(signs)}")
    return "\n".join(lines).translate(_plain_signs(plain))


def _wrapped(lines: list[str], width: int | None) -> list[str]:
    if width is None:
        return lines
    return list(chain.from_iterable(wrap(line, width) for line in lines))


def _plain_signs(plain: bool | None) -> dict[int, str]:
    """The signs that are drawn plainly: all, none, or by default those that standard output cannot write."""
    if plain is not None:
        plain = yes_or_no("plain", plain)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    replaced = {}
    for sign, plain_sign in zip(SIGNS, PLAIN, strict=True):
        if plain or (plain is None and not _has(encoding, sign)):
            replaced[ord(sign)] = plain_sign
    return replaced


def _has(encoding: str, sign: str) -> bool:
    try:
        sign.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _ruler(k_len: int, scale: int, space: str) -> str:
    """The last digit of each position; where a character stands for several, every tenth one's first position."""
    if scale == 1:
        return space.join(str(key % 10) for key in range(k_len))
    columns = -(-k_len // scale)
    ruler = "".join(f"{column * scale:<10}" for column in range(0, columns, 10)).rstrip()
    if len(ruler) <= columns:
        return ruler
    return ruler[: 10 * ((columns - 1) // 10)].rstrip()  # without the last number, which is cut


def _signs(marks: torch.Tensor, scale: int) -> list[list[str]]:
    """The characters of each line, each for `scale` x `scale` pairs, or for fewer at the ends."""
    most = F.max_pool2d(marks[None].float(), scale, ceil_mode=True)[0]
    least = -F.max_pool2d(-marks[None].float(), scale, ceil_mode=True)[0]
    sign_of = {(0, 0): MAY_NOT, (1, 0): LEARNS, (1, 1): LEARNS, (2, 2): MAY_LOOK}
    lines = []
    for highs, lows in zip(most.int().tolist(), least.int().tolist(), strict=True):
        pairs = zip(highs, lows, strict=True)
        lines.append([sign_of.get(pair, SOME) for pair in pairs])
    return lines


def drawn_pairs(
    pattern: Pattern, q_len: int, k_len: int, *, q_start: int | None = None, layers: int = 1
) -> tuple[list[Panel], str]:
    """What a drawing shows of each pair, for each set of heads that are alike, and the number of pairs in words."""
    allowed = pattern.dense(q_len, k_len, q_start=q_start)
    title = f"{int(allowed.sum()):,} of {count_of(allowed.numel(), 'pairs', ',')}"
    if pattern.varies_by_head:
        title += f" of {count_of(allowed.shape[1], 'heads')}"
    joined = torch.zeros(q_len, k_len, dtype=torch.bool)
    if layers > 1:
        if q_start not in (None, k_len - q_len):
            raise ArgumentError(
                f"a stack's queries are the last positions of its keys; q_start is {q_start}"
            )
        joined = learned(pattern, q_len, k_len, layers)
        title += f", {int(joined.sum()):,} through {layers} layers"
    if allowed.dim() < 4:
        return [Panel((), pattern, _marks(allowed, joined))], title
    by_head = allowed[0]
    if pattern.varies_by_row:
        title += ", drawn for the first batch row"
    if by_head.shape[0] == 1:
        return [Panel((), pattern, _marks(by_head[0], joined))], title
    alike: dict[tuple[str, bytes], list[int]] = {}
    for head, pairs in enumerate(by_head):
        drawing = str(pattern.for_head(head)), bytes(pairs.flatten().tolist())
        alike.setdefault(drawing, []).append(head)
    panels = []
    for heads in alike.values():
        first = heads[0]
        marks = _marks(by_head[first], joined)
        panels.append(Panel(tuple(heads), pattern.for_head(first), marks))
    return panels, title


def _marks(allowed: torch.Tensor, joined: torch.Tensor) -> torch.Tensor:
    return torch.maximum(allowed.to(torch.int8) * 2, joined.to(torch.int8))


def learned(pattern: Pattern, q_len: int, k_len: int, layers: int) -> torch.Tensor:
    """The positions from which each of the last queries can learn through a stack of layers with this pattern.

    Residual connections keep the query's own position. Heads of a layer feed all heads of the next, so a pair counts if
    any head allows it; a pattern that differs by batch row is taken for the first one.

    Args:
        pattern: what each layer allows among all `k_len` positions.
        q_len: rows of the result, the last positions; at most `k_len`.
        k_len: positions of the text.
        layers: 1 or more.

    Returns:
        Booleans (q_len, k_len).

    >>> from regard.patterns import CausalWindow
    >>> learned(CausalWindow(2), 1, 5, layers=3).int().tolist()
    [[0, 1, 1, 1, 1]]
    """
    if q_len > k_len:
        raise ArgumentError(
            f"{count_of(q_len, 'queries')} of a text of {count_of(k_len, 'positions')}; a stack "
            f"needs a position for every query"
        )
    if layers < 1:
        raise ArgumentError(f"a stack of {layers} layers; it has 1 or more")
    allowed = pattern.dense(k_len, k_len)
    if allowed.dim() == 4:
        allowed = allowed[0].any(0)
    of_layer = (allowed | torch.eye(k_len, dtype=torch.bool, device=allowed.device)).float()
    reached = torch.eye(k_len, device=allowed.device)[k_len - q_len :]
    for _ in range(min(layers, k_len)):  # no path between k_len positions needs more steps
        further = (reached @ of_layer > 0).float()
        if torch.equal(further, reached):
            break
        reached = further
    return reached > 0
