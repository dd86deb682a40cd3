"""`regard plan`: the plan of a call that is never made, so that no tensor of its size is needed."""

from __future__ import annotations

from typing import Annotated

import torch
import typer

from regard.arguments import suggest
from regard.backends import BACKENDS
from regard.cli.console import out_json, out_lines, say, shortened
from regard.cli.options import Json
from regard.core.call import make_problem
from regard.core.choosing import make_plan
from regard.core.result import checked_wants
from regard.core.tensors import DTYPES, Outline
from regard.errors import ArgumentError

DEVICES = ("cpu", "cuda")
COMPILED = "flex"  # the backend that compiles its kernels
LARGEST = 10**18  # of a size: positions are counted in 64 bits


def plan(
    q_len: Annotated[int, typer.Option(min=0, help="Queries.")],
    pattern: Annotated[
        str, typer.Option(metavar="PATTERN", help="Which pairs are allowed, such as 'causal & causal_window(512)'.")
    ] = "full",
    mechanism: Annotated[
        str | None, typer.Option(metavar="MECHANISM", help="Such as 'performer(features=256)'. [default: softmax]")
    ] = None,
    k_len: Annotated[int | None, typer.Option(min=0, help="Keys. [default: as many as queries]")] = None,
    heads: Annotated[int, typer.Option(min=1, help="Query heads.")] = 8,
    kv_heads: Annotated[int | None, typer.Option(min=1, help="Key/value heads. [default: heads]")] = None,
    head_dim: Annotated[int, typer.Option(min=1, help="Size of a query and of a key.")] = 64,
    v_dim: Annotated[int | None, typer.Option(min=0, help="Size of a value. [default: head-dim]")] = None,
    batch: Annotated[int, typer.Option(min=0, help="Texts.")] = 1,
    dtype: Annotated[str, typer.Option(help="float16, bfloat16, float32 or float64.")] = "float32",
    device: Annotated[str, typer.Option(help="cpu or cuda; the device need not be present.")] = "cpu",
    grad: Annotated[bool, typer.Option("--grad", help="With gradients of q, k and v.")] = False,
    dropout: Annotated[float, typer.Option(help="Share of the weights dropped.")] = 0.0,
    softcap: Annotated[float | None, typer.Option(help="Scores are capped to plus and minus this.")] = None,
    want: Annotated[
        list[str] | None, typer.Option(metavar="STATISTIC", help="entropy, 'top_keys(8)', ...; may be repeated.")
    ] = None,
    backend: Annotated[str, typer.Option(help="auto for the cheapest, or a name.")] = "auto",
    as_json: Json = False,
) -> None:
    """Print the plan of a call with these sizes."""
    keys, kv_heads = q_len if k_len is None else k_len, heads if kv_heads is None else kv_heads
    shapes = (
        (batch, heads, q_len, head_dim),
        (batch, kv_heads, keys, head_dim),
        (batch, kv_heads, keys, head_dim if v_dim is None else v_dim),
    )
    if device not in DEVICES:
        raise ArgumentError(f"device {device!r} is not supported; {suggest(device, DEVICES)}")
    kind = _dtype(dtype)
    for name, size in zip(("batch", "heads", "q-len", "k-len", "head-dim", "v-dim", "kv-heads"),
                          (batch, heads, q_len, keys, head_dim, shapes[2][3], kv_heads), strict=True):  # fmt: skip
        if not 0 <= size <= LARGEST:
            raise ArgumentError(f"--{name} is {shortened(size)}; it must be a number from 0 to {LARGEST}")
    if kv_heads == 0 or heads % kv_heads:
        raise ArgumentError(f"--heads is {heads} and --kv-heads {kv_heads}; heads must be a multiple of kv-heads")
    q, k, v = (Outline(shape, kind, torch.device(device), grad) for shape in shapes)
    problem = make_problem(
        q, k, v, pattern=pattern, dropout=dropout, softcap=softcap, mechanism=mechanism, want=checked_wants(want or ())
    )
    plan = make_plan(problem, BACKENDS, backend)
    if as_json:
        out_json(plan.to_json())
    else:
        out_lines(str(plan))
    if device == "cuda" and not torch.cuda.is_available():
        needs = ", where triton is installed" if plan.backend == COMPILED else ""
        say(f"planned for a machine with cuda{needs}; this one has none")


def _dtype(name: str) -> torch.dtype:
    named = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
    if name not in named:
        raise ArgumentError(f"dtype {name!r} is not supported; {suggest(name, named)}")
    return named[name]
