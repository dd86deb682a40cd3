"""torch.export: one program for every batch and length, which another process loads."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, export
from torch.nn import functional as F

import regard as rg
from regard import patterns as p
from regard.functional.operation import OperationOptions, OperationTensors
from regard.functional.plain import plain_attention
from regard.integrations.torch import MultiheadAttention, whole_attention
from regard.mechanisms import parse
from regard.mechanisms.base import Sizes
from regard.patterns.text import written_apart

B = Dim("b")
S = Dim("s")
C = Dim("c")
TEXTS = {0: B, 1: S}
CONTEXTS = {0: B, 1: C}
ROWS = {0: B}


class CalledLayer(nn.Module):
    """A layer that is called by a function."""

    def __init__(self, call: Callable[..., torch.Tensor], **options: Any) -> None:
        super().__init__()
        self.call = call
        self.layer = rg.MultiHeadAttention(dim=6, heads=2, head_dim=4, **options)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.call(self.layer, *inputs)


def vectors(batch: int, length: int) -> torch.Tensor:
    return torch.arange(6.0 * batch * length).sin().view(batch, length, 6)


# The call of a layer, its options, the inputs of a batch and a length, and which of their axes may change.
CALLS: dict[str, tuple[Any, dict[str, Any], Any, Any]] = {
    "rotary positions and forget gates": (
        lambda layer, x: layer(x),
        {"positions": "rotary", "pattern": "causal_window(3)", "forgetting": True},
        lambda b, n: (vectors(b, n),),
        (TEXTS,),
    ),
    "a context with padding": (
        lambda layer, x, context, stop: layer(x, context, pattern=p.KeySpan(0, stop)),
        {},
        lambda b, n: (vectors(b, n), vectors(b, n + 2), torch.arange(b) + 1),
        (TEXTS, CONTEXTS, ROWS),
    ),
    "starts by row": (
        lambda layer, x, context, start: layer(x, context, q_start=start),
        {"positions": "rotary", "pattern": "causal"},
        lambda b, n: (vectors(b, n), vectors(b, n + 2), torch.arange(b)),
        (TEXTS, CONTEXTS, ROWS),
    ),
    "padding with holes": (
        lambda layer, x, mask: layer(x, pattern=p.KeyMask(mask)),
        {},
        lambda b, n: (vectors(b, n), torch.arange(b * n).view(b, n) % 3 != 1),
        (TEXTS, TEXTS),
    ),
    "documents": (
        lambda layer, x, ids: layer(x, pattern=p.SameDocument(ids)),
        {"positions": "rotary"},
        lambda b, n: (vectors(b, n), torch.arange(b * n).view(b, n) // 3),
        (TEXTS, TEXTS),
    ),
    "a cache of its own": (
        lambda layer, x: layer(x, cache=layer.new_cache(x.shape[0])),
        {"pattern": "causal"},
        lambda b, n: (vectors(b, n),),
        (TEXTS,),
    ),
}


@pytest.mark.parametrize(("call", "options", "inputs", "axes"), CALLS.values(), ids=CALLS)
def test_one_exported_program_serves_every_batch_and_every_length(call, options, inputs, axes):
    layer = CalledLayer(call, **options)
    program = export(layer, inputs(2, 7), dynamic_shapes=(axes,)).module()
    for batch, length in ((3, 5), (2, 13), (7, 3)):
        tensors = inputs(batch, length)
        torch.testing.assert_close(program(*tensors), layer(*tensors))


@pytest.mark.parametrize("numbers", [True, False], ids=["numbers", "booleans"])
def test_pytorchs_layer_with_a_mask_is_exported_and_compiled_as_one_graph(numbers):
    ours = MultiheadAttention(6, 2, batch_first=True).eval()
    theirs = nn.MultiheadAttention(6, 2, batch_first=True).eval()
    ours.load_state_dict(theirs.state_dict())
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    padding = torch.zeros(3, 5).masked_fill(torch.arange(5) > 3, -torch.inf)
    if not numbers:
        mask = mask.isinf()
        padding = padding.isinf()

    class Masked(nn.Module):
        def __init__(self, layer: nn.Module) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x, mask, padding):
            masks = {"attn_mask": mask, "key_padding_mask": padding}
            output, _ = self.layer(x, x, x, need_weights=False, **masks)
            return output

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
    layer = CalledLayer(lambda layer, x: layer(x), pattern="causal")
    torch.export.save(export(layer, (vectors(1, 5),)), tmp_path / "program.pt2")
    files = [str(tmp_path / name) for name in ("program.pt2", "output.pt")]
    command = [sys.executable, "-c", LOADING, *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    torch.testing.assert_close(torch.load(files[1]), layer(vectors(1, 5)))


class Bare(nn.Module):
    """A call of the function."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, q, k, v):
        return rg.attention(q, k, v, **self.options)


def tensors(batch: int, q_len: int, k_len: int) -> list[torch.Tensor]:
    shapes = (batch, 4, q_len, 5), (batch, 2, k_len, 5), (batch, 2, k_len, 3)
    return [torch.arange(1.0 * torch.Size(shape).numel()).cos().view(shape) for shape in shapes]


@pytest.mark.filterwarnings("ignore:`isinstance.treespec:FutureWarning")  # of PyTorch itself
@pytest.mark.parametrize("options", [{}, {"softcap": 3.0}], ids=["fused", "by a softmax"])
def test_a_program_in_pytorchs_own_operations_keeps_empty_rows_and_hidden_keys(options):
    module = Bare(pattern="causal_window(4) & (key_set(1..30) | same_block(3))", **options)
    axes = {"q": {0: B, 2: S}, "k": {0: B, 2: C}, "v": {0: B, 2: C}}
    program = export(module, tuple(tensors(2, 9, 7)), dynamic_shapes=axes).run_decompositions()
    assert "regard" not in str(program.graph)
    with whole_attention():
        whole = export(module, tuple(tensors(2, 9, 7))).run_decompositions()
        assert "regard.attention" in str(whole.graph)
    for batch, q_len, k_len in ((3, 9, 5), (2, 6, 9), (7, 8, 8)):
        q, k, v = tensors(batch, q_len, k_len)
        if q_len < k_len:  # the first keys are hidden
            k[:, :, 0] = torch.nan
            v[:, :, 0] = torch.nan
        output = program.module()(q, k, v)
        torch.testing.assert_close(output, module(q, k, v))
        if q_len > k_len:  # the first queries have no key
            assert not output[:, :, : q_len - k_len].any()


@pytest.mark.parametrize("name", ["retention", "ssd", "gated_linear", "kimi_delta"])
@torch.no_grad()
def test_a_recurrence_by_a_scan_over_chunks_is_that_recurrence(name, monkeypatch):
    mechanism = parse(name)
    q = torch.randn(2, 4, 70, 6).double()
    k = F.normalize(torch.randn(2, 2, 70, 6).double(), dim=-1)
    v = torch.randn(2, 2, 70, 5).double()
    gates = {}
    if name != "retention":
        shapes = mechanism.parameter_shapes(Sizes(2, 4, 2, 70, head_dim=6))
        for gate, shape in shapes.items():
            gates[gate] = F.logsigmoid(torch.randn(shape)).double()
    if "strength" in gates:
        gates["strength"] = gates["strength"].exp()
    pattern = p.Causal() & p.KeySpan(torch.tensor([0, 40]), torch.tensor([66, 70]))
    k[0, :, 66:] = torch.nan  # padding
    v[0, :, 66:] = torch.nan
    expected = rg.attention(q, k, v, pattern=pattern, mechanism=mechanism, parameters=gates)

    # Other runtimes invert no matrices.
    monkeypatch.setattr(torch.compiler, "_is_exporting_flag", True)
    text, held = written_apart(pattern, lambda value: value)
    arguments = OperationTensors(q, k, v, *[None] * 4, held, list(gates.values()), None)
    options = OperationOptions(
        text,
        name,
        names=list(gates),
        first=0,
        lowest=None,
        softcap=None,
        scale=None,
        dropout=0.0,
        strict=False,
        backend="auto",
        learns=(),
    )
    output = plain_attention(arguments, options)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)
    assert not output[1, :, :40].any()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dropout": 0.5}, "dropout is not exported"),
        (
            {"pattern": "causal", "mechanism": "linear_transformer"},
            "only softmax is, and recurrent mechanisms",
        ),
        ({"pattern": "random_blocks(1, block=2, seed=0)"}, "by a hash"),
        (
            {"pattern": p.ChosenKeys(torch.zeros(1, 1, 5, 1, dtype=torch.int64))},
            "its lists are for one number",
        ),
    ],
    ids=["dropout", "linear", "random blocks", "chosen keys"],
)
@pytest.mark.filterwarnings("ignore:`isinstance.treespec:FutureWarning")
def test_what_has_no_plain_operations_is_refused_in_a_sentence(options, words):
    program = export(Bare(**options), tuple(tensors(2, 5, 5)))
    with pytest.raises(rg.UnsupportedError, match=words):
        program.run_decompositions()
