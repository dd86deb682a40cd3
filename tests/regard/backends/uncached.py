"""Calls that are planned anew each time, so that a test may change the sizes of blocks in between."""

from __future__ import annotations

from typing import Any

import torch

from regard.backends.fused import Fused
from regard.backends.reference import Reference
from regard.backends.scores import blocking
from regard.backends.streamed import Streamed
from regard.core.call import make_problem
from regard.core.plan import AttentionDetail, Plan, make_plan
from regard.core.result import checked_wants

BACKENDS = {backend.name: backend for backend in (Fused(), Streamed(), Reference())}


def plan(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, backend: str = "auto", want: Any = "log_sum_exp", **options
) -> Plan:
    """What `plan_attention` plans for `attention_detail`."""
    options.pop("dropout_seed", None)
    return make_plan(make_problem(q, k, v, want=checked_wants(want), **options), BACKENDS, backend)


def detail(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options) -> AttentionDetail:
    """What `attention_detail` tells."""
    start = options.get("q_start")
    return plan(q, k, v, **options).detail(
        q, k, v, bias=options.get("bias"), q_start=start if isinstance(start, torch.Tensor) else None,
        dropout_seed=options.get("dropout_seed"),
    )  # fmt: skip


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options) -> torch.Tensor:
    """What `attention` answers."""
    return detail(q, k, v, **options).output


def cut(monkeypatch, rows: int, pairs: int, aligned: int) -> None:
    """Strips of so many rows, parts of so many pairs, tiles that begin at multiples of `aligned`."""
    for name, value in {"ROWS": rows, "PAIRS": pairs, "ALIGNED": aligned}.items():
        monkeypatch.setattr(blocking, name, value)
