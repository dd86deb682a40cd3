"""`regard show`: a pattern drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from regard.cli.console import check_picture_name, out, out_json, out_lines
from regard.patterns import Pattern, parse
from regard.patterns.drawing import draw, learned


def run_show(text: str, q_len: int, k_len: int, *, png: Path | None, as_json: bool, layers: int = 1) -> None:
    """Draw in the terminal, into a PNG, or as JSON rows of 0 and 1; for a stack of layers, say how far it reaches."""
    pattern = parse(text)
    if png is not None:
        from regard.inspection import draw_pattern

        check_picture_name(png)
        draw_pattern(pattern, q_len, k_len, png, layers=layers)
    if as_json:
        out_json(json.dumps(_record(pattern, q_len, k_len, png, layers)))
        return
    if png is None:
        out_lines(draw(pattern, q_len, k_len, layers=layers))
    else:
        out(f"{pattern} drawn in {png}")
    if layers > 1:
        out(f"{layers} layers reach {pattern.reach(layers)}")
        out(f"the last query learns from {_spans(pattern, k_len, layers)}")


def _record(pattern: Pattern, q_len: int, k_len: int, png: Path | None, layers: int) -> dict[str, Any]:
    record: dict[str, Any] = {"pattern": str(pattern), "q_len": q_len, "k_len": k_len}
    record["count"] = pattern.count(q_len, k_len)
    if layers > 1:
        reach = pattern.reach(layers)
        record |= {"layers": layers, "reach": {"back": reach.back, "ahead": reach.ahead}}
    if png is not None:
        return record | {"png": str(png)}
    record["allowed"] = pattern.dense(q_len, k_len).int().tolist()
    if layers > 1:
        record["learned"] = learned(pattern, q_len, k_len, layers).int().tolist()
    return record


def _spans(pattern: Pattern, k_len: int, layers: int) -> str:
    """The positions that the last query learns from, as the spans of a text."""
    from regard.patterns.arguments import runs, words

    positions = learned(pattern, 1, k_len, layers)[0].nonzero().flatten().tolist()
    return f"{len(positions)} of {k_len} positions: {words(runs(positions))}"
