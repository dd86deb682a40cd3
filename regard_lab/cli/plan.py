"""`regard plan`: the plan of a call that is never made, so that no tensor of its size is needed."""

from typing import Annotated

import torch
from typer import Option

from regard.arguments import suggest
from regard.backends import BACKENDS
from regard.core.call import make_problem
from regard.core.plan import make_plan
from regard.core.problem import MOST_PLANNED
from regard.core.result import checked_wants
from regard.core.tensors import DTYPES, Outline
from regard.errors import ArgumentError
from regard_lab.cli.console import note, out_result
from regard_lab.cli.options import Json, flag

DEVICES = ("cpu", "cuda")
COMPILED = "flex"  # the backend that compiles its kernels


def plan(
    q_len: Annotated[int, Option(min=0, help="Queries.")],
    pattern: Annotated[
        str,
        Option(
            metavar="PATTERN",
            help="Which pairs are allowed, such as 'causal & causal_window(512)'.",
        ),
    ] = "full",
    mechanism: Annotated[
        str | None,
        Option(metavar="MECHANISM", help="Such as 'performer(features=256)'. [default: softmax]"),
    ] = None,
    k_len: Annotated[int | None, Option(min=0, help="Keys. [default: as many as queries]")] = None,
    heads: Annotated[int, Option(min=1, help="Query heads.")] = 8,
    kv_heads: Annotated[int | None, Option(min=1, help="Key/value heads. [default: heads]")] = None,
    head_dim: Annotated[int, Option(min=1, help="Size of a query and of a key.")] = 64,
    v_dim: Annotated[int | None, Option(min=0, help="Size of a value. [default: head-dim]")] = None,
    batch: Annotated[int, Option(min=0, help="Texts.")] = 1,
    dtype: Annotated[str, Option(help="float16, bfloat16, float32 or float64.")] = "float32",
    device: Annotated[str, Option(help="cpu or cuda; the device need not be present.")] = "cpu",
    grad: Annotated[bool, Option("--grad", help="With gradients of q, k and v.")] = False,
    dropout: Annotated[float, Option(help="Share of the weights dropped.")] = 0.0,
    softcap: Annotated[
        float | None, Option(help="Scores are capped to plus and minus this.")
    ] = None,
    want: Annotated[
        list[str] | None,
        Option(metavar="STATISTIC", help="entropy, 'top_keys(8)', ...; may be repeated."),
    ] = None,
    backend: Annotated[str, Option(help="auto for the cheapest, or a name.")] = "auto",
    as_json: Json = False,
) -> None:
    """Show which backend would compute a call, its cost, and why others are not used; computes nothing."""
    sizes = {
        "batch": batch,
        "heads": heads,
        "q_len": q_len,
        "k_len": q_len if k_len is None else k_len,
        "head_dim": head_dim,
        "v_dim": head_dim if v_dim is None else v_dim,
        "kv_heads": heads if kv_heads is None else kv_heads,
    }
    torch_dtype = _check(sizes, dtype, device)

    def outline(axes: str) -> Outline:
        shape = tuple(sizes[axis] for axis in axes.split())
        return Outline(shape, torch_dtype, torch.device(device), grad)

    problem = make_problem(
        outline("batch heads q_len head_dim"),
        outline("batch kv_heads k_len head_dim"),
        outline("batch kv_heads k_len v_dim"),
        pattern=pattern,
        dropout=dropout,
        softcap=softcap,
        mechanism=mechanism,
        want=checked_wants(want or ()),
    )
    plan = make_plan(problem, BACKENDS, backend)
    out_result(as_json, plan.to_json, lambda: str(plan))
    if device == "cuda" and not torch.cuda.is_available():
        needs = ", where triton is installed" if plan.backend == COMPILED else ""
        note(f"planned for a machine with cuda{needs}; this one has none")


def _check(sizes: dict[str, int], dtype: str, device: str) -> torch.dtype:
    """The dtype by its name; an ArgumentError for one, or a device, or sizes, that cannot be planned."""
    dtypes = {str(kind).removeprefix("torch."): kind for kind in DTYPES}
    if device not in DEVICES:
        raise ArgumentError(f"device {device!r} is not supported; {suggest(device, DEVICES)}")
    if dtype not in dtypes:
        raise ArgumentError(f"dtype {dtype!r} is not supported; {suggest(dtype, dtypes)}")
    for name, size in sizes.items():
        if not 0 <= size <= MOST_PLANNED:
            raise ArgumentError(
                f"{flag(name)} is {size:,}; it must be a number from 0 to {MOST_PLANNED}"
            )
    heads = sizes["heads"]
    kv_heads = sizes["kv_heads"]
    if kv_heads == 0 or heads % kv_heads:
        raise ArgumentError(
            f"--heads is {heads} and --kv-heads {kv_heads}; heads must be a multiple of kv-heads"
        )
    return dtypes[dtype]
