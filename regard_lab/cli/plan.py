"""`regard plan`: the plan of a call that is never made, so that no tensor of its size is needed.

With `--ranks` the call is divided among processes, and the forecast of `regard.distributed` is printed instead.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import torch
from typer import Option

from regard.arguments import suggest
from regard.backends import BACKENDS
from regard.core.call import make_problem
from regard.core.plan import make_plan
from regard.core.problem import MOST_PLANNED
from regard.core.result import checked_wants
from regard.core.tensors import DTYPES, Outline
from regard.errors import ArgumentError, UnsupportedError
from regard.mechanisms import Softmax, parse
from regard.mechanisms.features import Kernelised
from regard_lab.cli.console import note, out_json, out_lines
from regard_lab.cli.options import Json

if TYPE_CHECKING:
    from regard.distributed import Forecast, Layout, Machine

DEVICES = ("cpu", "cuda")
COMPILED = "flex"  # the backend that compiles its kernels
LARGEST = MOST_PLANNED  # of a size
UNEVEN, WORTH = 0.9, 0.1  # another layout is forecast too below this share of computing, and named if it gains this
MOST_COMPARED = 64  # ranks for which that is done
FORECAST_FORMS = ("ring", "gather", "auto")
MOST_RANKS = 4096  # the time of a forecast grows with the square of them; 1,024 take half a minute


def plan(
    q_len: Annotated[int, Option(min=0, help="Queries.")],
    pattern: Annotated[
        str, Option(metavar="PATTERN", help="Which pairs are allowed, such as 'causal & causal_window(512)'.")
    ] = "full",
    mechanism: Annotated[
        str | None, Option(metavar="MECHANISM", help="Such as 'performer(features=256)'. [default: softmax]")
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
    softcap: Annotated[float | None, Option(help="Scores are capped to plus and minus this.")] = None,
    want: Annotated[
        list[str] | None, Option(metavar="STATISTIC", help="entropy, 'top_keys(8)', ...; may be repeated.")
    ] = None,
    backend: Annotated[str, Option(help="auto for the cheapest, or a name.")] = "auto",
    ranks: Annotated[
        int | None, Option(min=1, help="Processes that share the sequence: print the forecast of the call.")
    ] = None,
    layout: Annotated[
        str | None, Option(help="With --ranks: contiguous or zigzag. [default: contiguous]", show_default=False)
    ] = None,
    form: Annotated[
        str | None, Option(help="With --ranks: ring, gather or auto. [default: auto]", show_default=False)
    ] = None,
    flops: Annotated[
        float | None, Option(help="With --ranks: operations of attention per second. [default: 4.8e14]")
    ] = None,
    bandwidth: Annotated[
        float | None, Option(help="With --ranks: bytes per second to and from a process. [default: 5e10]")
    ] = None,
    latency: Annotated[
        float | None, Option(help="With --ranks: seconds before a message's first byte. [default: 1e-05]")
    ] = None,
    overhead: Annotated[
        float | None, Option(help="With --ranks: seconds in which the host prepares a step. [default: 9e-4]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the plan of a call with these sizes, or with --ranks the forecast of the call over several processes."""
    sizes = {
        "batch": batch, "heads": heads, "q_len": q_len, "k_len": q_len if k_len is None else k_len,
        "head_dim": head_dim, "v_dim": head_dim if v_dim is None else v_dim,
        "kv_heads": heads if kv_heads is None else kv_heads,
    }  # fmt: skip
    kind = _check(sizes, dtype, device)
    machine = {"flops": flops, "bandwidth": bandwidth, "latency": latency, "overhead": overhead}
    if ranks is not None:
        given = {
            "--grad": grad, "--dropout": dropout, "--softcap": softcap, "--want": want,
            "--k-len": sizes["k_len"] != q_len, "--device": device != DEVICES[0], "--backend": backend != "auto",
        }  # fmt: skip
        _check_forecast(ranks, mechanism, form, [name for name, value in given.items() if value])
        options: dict[str, Any] = {"dtype": kind, "pattern": pattern, "form": form or "auto"}
        options |= {name: sizes[name] for name in ("heads", "kv_heads", "head_dim", "v_dim", "batch")}
        _print_forecast(q_len, ranks, layout or "contiguous", options, machine, as_json)
        return
    of_ranks = {"layout": layout, "form": form, **machine}
    if strange := [f"--{name}" for name, value in of_ranks.items() if value is not None]:
        raise ArgumentError(
            f"{' and '.join(strange)} {'belongs' if len(strange) == 1 else 'belong'} to --ranks N, the number of "
            f"processes that share the sequence; give --ranks too"
        )
    shapes = (
        tuple(sizes[axis] for axis in axes.split())
        for axes in ("batch heads q_len head_dim", "batch kv_heads k_len head_dim", "batch kv_heads k_len v_dim")
    )
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
        note(f"planned for a machine with cuda{needs}; this one has none")


def _check(sizes: dict[str, int], dtype: str, device: str) -> torch.dtype:
    """The dtype by its name; an ArgumentError for one, or a device, or sizes, that cannot be planned."""
    named = {_name(kind): kind for kind in DTYPES}
    for what, word, words in (("device", device, DEVICES), ("dtype", dtype, named)):
        if word not in words:
            raise ArgumentError(f"{what} {word!r} is not supported; {suggest(word, words)}")
    for name, size in sizes.items():
        if not 0 <= size <= LARGEST:
            raise ArgumentError(f"--{name.replace('_', '-')} is {size:,}; it must be a number from 0 to {LARGEST}")
    heads, kv_heads = sizes["heads"], sizes["kv_heads"]
    if kv_heads == 0 or heads % kv_heads:
        raise ArgumentError(f"--heads is {heads} and --kv-heads {kv_heads}; heads must be a multiple of kv-heads")
    return named[dtype]


def _check_forecast(ranks: int, mechanism: str | None, form: str | None, given: list[str]) -> None:
    """Raise for options of the plan of one process, and for mechanisms and forms that are not forecast."""
    if ranks > MOST_RANKS:
        raise ArgumentError(
            f"--ranks is {ranks:,}; the time of a forecast grows with its square, so at most {MOST_RANKS:,} are "
            f"forecast: divide --ranks and --q-len by the same number"
        )
    if given:
        raise ArgumentError(
            f"{' and '.join(given)} with --ranks: the forecast is of a forward pass over one sequence by any backend, "
            f"as many keys as queries, without dropout, softcap or statistics; leave "
            f"{'it' if len(given) == 1 else 'them'} out, or leave out --ranks"
        )
    if form not in (None, "state", *FORECAST_FORMS):
        raise ArgumentError(f"--form {form!r} does not exist; {suggest(form, FORECAST_FORMS)}")
    if form == "state":
        raise UnsupportedError(
            "--form state sends sums of a fixed size and no keys, and is not forecast; give ring, gather or auto"
        )
    asked = Softmax() if mechanism is None else parse(mechanism)
    if asked == Softmax():
        return
    if asked.is_softmax or isinstance(asked, Kernelised):
        why = "is computed over several processes, but its cost is not forecast"
    else:
        why = "has no form over several processes, since its results over parts of the keys cannot be merged"
    raise UnsupportedError(f"--mechanism {asked} with --ranks: {asked} {why}; forecast softmax, or leave out --ranks")


def _print_forecast(
    length: int, ranks: int, layout: str, options: dict[str, Any], machine: dict[str, float | None], as_json: bool
) -> None:
    from regard.distributed import Layout, Machine, forecast  # takes seconds, and the plan of one process needs none

    given: dict[str, Any] = {name: value for name, value in machine.items() if value is not None}
    assumed = Machine(**given)
    divided = Layout.even(layout, length, ranks)
    made = forecast(divided.lengths, layout=layout, machine=assumed, **options)
    if as_json:
        results = ("sent", "received", "memory", "compute", "waiting", "seconds", "efficiency")
        record = {
            "ranks": ranks, "layout": layout, "form": made.form, "pattern": options["pattern"],
            "dtype": _name(options["dtype"]), "positions": divided.lengths,
            **{name: getattr(made, name) for name in results}, "assumed": vars(assumed),
        }  # fmt: skip
        out_json(json.dumps(record))
        return
    better = ""
    if layout == "contiguous" and made.efficiency < UNEVEN and ranks <= MOST_COMPARED:
        other = forecast(Layout.even("zigzag", length, ranks).lengths, layout="zigzag", machine=assumed, **options)
        if other.efficiency > made.efficiency + WORTH:
            better = f"; with --layout zigzag {other.efficiency:.0%}"
    out_lines(_as_text(divided, made, assumed, options, better))


def _as_text(divided: Layout, made: Forecast, assumed: Machine, options: dict[str, Any], better: str = "") -> str:
    """The forecast as lines: the smallest and the largest value of a process, a better layout, what was assumed."""
    counts = {
        "positions": divided.lengths, "bytes received": made.received, "bytes sent": made.sent,
        "bytes of memory": made.memory,
    }  # fmt: skip
    times = {"ms computing": made.compute, "ms waiting": made.waiting, "ms in all": made.seconds}
    rows = [
        ("of one process", "least", "most"),
        *((name, f"{min(each):,}", f"{max(each):,}") for name, each in counts.items()),
        *((name, _ms(min(each)), _ms(max(each))) for name, each in times.items()),
    ]
    wide = [max(len(row[column]) for row in rows) for column in range(3)]
    sizes = ", ".join(f"{name} {options[name]}" for name in ("batch", "heads", "kv_heads", "head_dim", "v_dim"))
    return "\n".join([
        f"forecast of a forward pass of {options['pattern']} over {len(divided.lengths):,} processes, {divided.name}, "
        f"{made.form}: {divided.length:,} positions, {sizes}, {_name(options['dtype'])}",
        *(f"  {name:<{wide[0]}}  {least:>{wide[1]}}  {most:>{wide[2]}}" for name, least, most in rows),
        f"  {made.efficiency:.0%} of the time of all processes is computing{better}",
        f"  assumed: {assumed.flops:g} operations and {assumed.bandwidth:g} bytes per second, "
        f"{assumed.latency:g} s before a message arrives, {assumed.overhead:g} s to prepare a step (--flops, "
        f"--bandwidth, --latency, --overhead)",
    ])  # fmt: skip


def _ms(seconds: float) -> str:
    """Milliseconds; what is shorter than a nanosecond is the rounding of a difference, and no time.

    >>> _ms(0.0400), _ms(1.1e-16)
    ('40', '0')
    """
    return f"{1e3 * seconds if seconds >= 1e-9 else 0:,.4g}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
