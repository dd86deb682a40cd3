"""Packed documents inside of torch.compile and of exported programs: one graph for all lengths."""

from functools import partial
from itertools import accumulate

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.export import Dim, export
from torch.fx.experimental.proxy_tensor import make_fx

import regard as rg
from regard import bias as b
from regard import mechanisms as m
from regard import patterns as p
from regard.integrations.torch import whole_attention

PACKINGS = ([3, 1, 7], [12], [5, 0, 6, 2], [1, 2], [30, 11, 4, 1, 9], [2, 2, 2, 2, 2, 2])
PATTERNS = {
    "causal": "causal",
    "a window": p.CausalWindow(3),
    "global tokens": "global_tokens(0) | causal_window(2)",
    "blocks": "causal & strided(3)",
}


def ends_of(lengths):
    return torch.tensor([0, *accumulate(lengths)])


def drawn(lengths, k_lengths=None):
    generator = torch.Generator().manual_seed(sum(lengths) + len(lengths))
    q_len = sum(lengths)
    k_len = sum(k_lengths or lengths)
    return [
        torch.randn(n, heads, size, generator=generator)
        for n, heads, size in ((q_len, 4, 5), (k_len, 2, 5), (k_len, 2, 3))
    ]


def answers(function, tensors, *ends):
    leaves = [x.clone().requires_grad_() for x in tensors]
    output = function(*leaves, *ends)
    return [output, *torch.autograd.grad(output.square().sum(), leaves)]


@pytest.mark.each_value
@pytest.mark.parametrize("crosses", [False, True], ids=["self", "cross"])
@pytest.mark.parametrize("name", PATTERNS)
def test_one_graph_serves_every_packing_with_the_same_bits(name, crosses):
    function = partial(rg.attention_varlen, pattern=PATTERNS[name], softcap=3.0, sink=0.2)
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("eager")
    inside = torch.compile(function, fullgraph=True, backend=counter, dynamic=True)
    for lengths in PACKINGS:
        k_lengths = [n + 2 for n in lengths] if crosses else lengths
        ends = [ends_of(lengths).int()]
        if crosses:
            ends.append(ends_of(k_lengths))
        tensors = drawn(lengths, k_lengths)
        expected = answers(function, tensors, *ends)
        for ours, theirs in zip(answers(inside, tensors, *ends), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    assert counter.frame_count <= 2  # one for the mark of a single document


def test_a_recurrence_over_packed_documents_is_one_graph():
    def function(q, k, v, log_decay, strength, ends):
        parameters = {"log_decay": log_decay, "strength": strength}
        return rg.attention_varlen(
            q, k, v, ends, pattern="causal", mechanism=m.GatedDelta(), parameters=parameters
        )

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("eager")
    inside = torch.compile(function, fullgraph=True, backend=counter, dynamic=True)
    for lengths in PACKINGS:
        q, k, v = drawn(lengths)
        k = torch.nn.functional.normalize(k, dim=-1)
        log_decay = -torch.rand(1, 2, sum(lengths))
        strength = torch.rand(1, 2, sum(lengths))
        tensors = (q, k, v, log_decay, strength)
        expected = answers(function, tensors, ends_of(lengths))
        for ours, theirs in zip(answers(inside, tensors, ends_of(lengths)), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    assert counter.frame_count <= 3  # one for a single document; the first one is traced twice


class PackedAttention(torch.nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, q, k, v, ends):
        parameters = {}
        if "mechanism" in self.options:
            decays = {"log_decay": -v[..., 0].abs().T[None]}
            parameters = {"parameters": decays}
        return rg.attention_varlen(q, k, v, ends, **self.options, **parameters)


@pytest.mark.filterwarnings("ignore:`isinstance.treespec:FutureWarning")  # of PyTorch itself
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"pattern": "causal"}, marks=pytest.mark.slow),
        {"pattern": "global_tokens(0) | causal_window(2)", "softcap": 3.0},
        {"pattern": "causal", "mechanism": m.Retention()},
    ],
    ids=["causal", "global tokens", "retention"],
)
@torch.no_grad()
def test_one_exported_program_serves_every_packing_whole_and_in_pytorchs_operations(options):
    module = PackedAttention(**options)
    length = Dim("length", min=2)
    documents = Dim("documents", min=2)
    axes = {"q": {0: length}, "k": {0: length}, "v": {0: length}, "ends": {0: documents}}
    example = (*drawn(PACKINGS[0]), ends_of(PACKINGS[0]))
    program = export(module, example, dynamic_shapes=axes)
    with whole_attention():
        whole = program.run_decompositions()
    plain = export(module, example, dynamic_shapes=axes).run_decompositions()
    assert "regard" not in str(plain.graph)
    for lengths in PACKINGS:
        arguments = (*drawn(lengths), ends_of(lengths))
        expected = module(*arguments)
        for made in (program, whole, plain):
            output = made.module()(*arguments)
            torch.testing.assert_close(output, expected, rtol=0, atol=2e-6)


def test_packed_documents_are_recorded_by_make_fx():
    tensors = drawn(PACKINGS[0])
    function = partial(rg.attention_varlen, pattern="causal")
    recorded = make_fx(function, tracing_mode="symbolic")(*tensors, ends_of(PACKINGS[0]))
    assert "regard.attention" in recorded.code
    other = (*drawn(PACKINGS[2]), ends_of(PACKINGS[2]))
    torch.testing.assert_close(recorded(*other), function(*other), rtol=0, atol=1e-6)


def test_wrong_ends_are_refused_when_the_graph_runs_and_what_needs_lengths_when_it_is_made():
    torch._dynamo.reset()
    tensors = drawn([3, 4])
    ends = torch.tensor([0, 3, 7])
    inside = torch.compile(rg.attention_varlen, fullgraph=True, backend="aot_eager")
    with pytest.raises(rg.ShapeError, match=r"cu_seqlens_q goes from 0 to 6; .* ends at 7"):
        inside(*tensors, torch.tensor([0, 3, 6]))
    with pytest.raises(rg.ShapeError, match="cu_seqlens_k goes from 0 to 3"):
        inside(*tensors, torch.tensor([0, 3, 7]), torch.tensor([0, 9, 3]))
    with pytest.raises(torch._dynamo.exc.Unsupported, match="a bias by distance beside"):
        inside(*tensors, ends, ends, bias=b.ALiBi())
    expected = rg.attention_varlen(*tensors, ends, bias=b.ALiBi(), pattern="causal")
    output = inside(*tensors, ends, bias=b.ALiBi(), pattern="causal")
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-6)
