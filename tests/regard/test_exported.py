"""torch.export: one program for every batch and length, which another process loads."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, export

import regard as rg
from regard import patterns as p
from regard.integrations.torch import MultiheadAttention

B, S, C = Dim("b"), Dim("s"), Dim("c")
TEXTS, CONTEXTS, ROWS = {0: B, 1: S}, {0: B, 1: C}, {0: B}


class Calling(nn.Module):
    """A layer that is called by a function."""

    def __init__(self, call: Callable[..., torch.Tensor], **options: Any) -> None:
        super().__init__()
        self.call, self.layer = call, rg.MultiHeadAttention(dim=6, heads=2, head_dim=4, **options)

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        return self.call(self.layer, *given)


def vectors(batch: int, length: int) -> torch.Tensor:
    return torch.arange(6.0 * batch * length).sin().view(batch, length, 6)


# The call of a layer, its options, the inputs of a batch and a length, and which of their axes may change.
CALLS: dict[str, tuple[Any, dict[str, Any], Any, Any]] = {
    "rotary positions": (
        lambda layer, x: layer(x), {"positions": "rotary", "pattern": "causal_window(3)"},
        lambda b, n: (vectors(b, n),), (TEXTS,),
    ),
    "a context with padding": (
        lambda layer, x, context, stop: layer(x, context, pattern=p.KeySpan(0, stop)), {},
        lambda b, n: (vectors(b, n), vectors(b, n + 2), torch.arange(b) + 1), (TEXTS, CONTEXTS, ROWS),
    ),
    "starts by row": (
        lambda layer, x, context, start: layer(x, context, q_start=start), {"positions": "rotary", "pattern": "causal"},
        lambda b, n: (vectors(b, n), vectors(b, n + 2), torch.arange(b)), (TEXTS, CONTEXTS, ROWS),
    ),
    "padding with holes": (
        lambda layer, x, mask: layer(x, pattern=p.KeyMask(mask)), {},
        lambda b, n: (vectors(b, n), torch.arange(b * n).view(b, n) % 3 != 1), (TEXTS, TEXTS),
    ),
    "documents": (
        lambda layer, x, ids: layer(x, pattern=p.SameDocument(ids)), {"positions": "rotary"},
        lambda b, n: (vectors(b, n), torch.arange(b * n).view(b, n) // 3), (TEXTS, TEXTS),
    ),
    "a cache of its own": (
        lambda layer, x: layer(x, cache=layer.new_cache(x.shape[0])), {"pattern": "causal"},
        lambda b, n: (vectors(b, n),), (TEXTS,),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("call", "options", "inputs", "axes"), CALLS.values(), ids=CALLS)
def test_one_exported_program_serves_every_batch_and_every_length(call, options, inputs, axes):
    layer = Calling(call, **options)
    program = export(layer, inputs(2, 7), dynamic_shapes=(axes,)).module()
    for batch, length in ((3, 5), (2, 13), (7, 3)):
        given = inputs(batch, length)
        torch.testing.assert_close(program(*given), layer(*given))


@pytest.mark.parametrize("numbers", [True, False], ids=["numbers", "booleans"])
def test_pytorchs_layer_with_a_mask_is_exported_and_compiled_as_one_graph(numbers):
    ours, theirs = (kind(6, 2, batch_first=True).eval() for kind in (MultiheadAttention, nn.MultiheadAttention))
    ours.load_state_dict(theirs.state_dict())
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    padding = torch.zeros(3, 5).masked_fill(torch.arange(5) > 3, -torch.inf)
    mask, padding = (mask, padding) if numbers else (mask.isinf(), padding.isinf())

    class Masked(nn.Module):
        def __init__(self, layer: nn.Module) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x, mask, padding):
            return self.layer(x, x, x, attn_mask=mask, key_padding_mask=padding, need_weights=False)[0]

    x = vectors(3, 5)
    expected = Masked(theirs)(x, mask, padding)
    torch._dynamo.reset()
    compiled = torch.compile(Masked(ours), fullgraph=True, backend="eager")
    for function in (Masked(ours), compiled, export(Masked(ours), (x, mask, padding)).module()):
        torch.testing.assert_close(function(x, mask, padding), expected)


LOADING = """
import sys
import torch
import regard
x = torch.arange(30.0).sin().view(1, 5, 6)
torch.save(torch.export.load(sys.argv[1]).module()(x), sys.argv[2])
"""


def test_a_saved_program_is_loaded_in_a_process_that_has_only_imported_torch_and_regard(tmp_path):
    layer = Calling(lambda layer, x: layer(x), pattern="causal")
    torch.export.save(export(layer, (vectors(1, 5),)), tmp_path / "program.pt2")
    files = [str(tmp_path / name) for name in ("program.pt2", "output.pt")]
    command = [sys.executable, "-c", LOADING, *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    torch.testing.assert_close(torch.load(files[1]), layer(vectors(1, 5)))
