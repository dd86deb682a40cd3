"""`regard show`: a pattern drawn."""

from __future__ import annotations

import json
from pathlib import Path

from regard.cli.console import check_picture_name, out
from regard.patterns import parse
from regard.patterns.drawing import draw


def run_show(text: str, q_len: int, k_len: int, *, png: Path | None, as_json: bool) -> None:
    """Draw in the terminal, into a PNG, or as JSON rows of 0 and 1."""
    pattern = parse(text)
    if png is not None:
        from regard.inspection import draw_pattern

        check_picture_name(png)
        draw_pattern(pattern, q_len, k_len, png)
    if as_json:
        record = {"pattern": str(pattern), "q_len": q_len, "k_len": k_len, "count": pattern.count(q_len, k_len)}
        if png is not None:
            record["png"] = str(png)
        else:
            record["allowed"] = pattern.dense(q_len, k_len).int().tolist()
        out(json.dumps(record))
    elif png is None:
        out(draw(pattern, q_len, k_len))
    else:
        out(f"{pattern} drawn in {png}")
