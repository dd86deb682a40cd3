"""`regard plan`: the plan of a call that is never made, so that no tensor of its size is needed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

import torch

from regard.cli.console import out_json, out_lines
from regard.errors import ArgumentError
from regard.kernels import BACKENDS
from regard.plan import make_plan
from regard.problem import make_problem
from regard.shapes import DTYPES
from regard.statistics import Want, checked_wants, top_keys, weights_of

DEVICES = ("cpu", "cuda")


def run_plan(
    *,
    q_len: int,
    pattern: str,
    k_len: int | None,
    heads: int,
    kv_heads: int | None,
    head_dim: int,
    v_dim: int | None,
    batch: int,
    dtype: str,
    device: str,
    grad: bool,
    dropout: float,
    softcap: float | None,
    want: list[str] | None,
    backend: str,
    as_json: bool,
) -> None:
    """Print the plan of a call with these sizes."""
    keys, kv_heads = q_len if k_len is None else k_len, heads if kv_heads is None else kv_heads
    shapes = (
        (batch, heads, q_len, head_dim),
        (batch, kv_heads, keys, head_dim),
        (batch, kv_heads, keys, head_dim if v_dim is None else v_dim),
    )
    if device not in DEVICES:
        raise ArgumentError(f"device {device!r} is not planned for; there are {', '.join(DEVICES)}")
    kind = _dtype(dtype)
    q, k, v = (torch.empty(shape, dtype=kind, device="meta", requires_grad=grad) for shape in shapes)
    problem = make_problem(
        q, k, v, pattern=pattern, dropout=dropout, softcap=softcap, want=checked_wants(_wants(want or []))
    )
    plan = make_plan(replace(problem, device=device), BACKENDS, backend)
    if as_json:
        out_json(plan.to_json())
    else:
        out_lines(str(plan))


def _dtype(name: str) -> torch.dtype:
    named = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
    if name not in named:
        raise ArgumentError(f"dtype {name!r} is not attended; there are {', '.join(named)}")
    return named[name]


def _wants(texts: Iterable[str]) -> list[Want]:
    """Statistics by name; `top_keys(8)` and `weights_of(rows=[0, 5], heads=[3])` as they are written in Python."""
    found: list[Want] = []
    for text in texts:
        if (counted := re.fullmatch(r"top_keys\((\d+)\)", text.strip())) is not None:
            found.append(top_keys(int(counted[1])))
        elif (chosen := re.fullmatch(r"weights_of\(rows=\[(.*?)\](?:, *heads=\[(.*?)\])?\)", text.strip())) is not None:
            found.append(weights_of(_numbers(chosen[1]), None if chosen[2] is None else _numbers(chosen[2])))
        else:
            found.append(text)
    return found


def _numbers(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isdecimal() for word in words):
        raise ArgumentError(f"weights_of is given [{text}]; rows and heads are whole numbers, such as [0, 5]")
    return [int(word) for word in words]
