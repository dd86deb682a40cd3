"""Steps that wait for each other are counted in the graph, and the counts are those of a stack with one layer less."""

import pytest
import torch
from torch import nn

from regard_lab.teaching import normal
from regard_lab.teaching.chains import longest_chain, marked_steps, shortest_chain
from regard_lab.teaching.stepping import DIM, ConvolutionNetwork, count_steps


def test_chains_of_a_drawn_graph():
    """a -> b -> d and a -> d; c stands beside them; after the block nothing is counted."""
    a, b, c = (nn.Linear(2, 2) for _ in range(3))
    x = torch.ones(2, requires_grad=True)
    unconnected = torch.ones(2, requires_grad=True)
    with marked_steps([a, b, c]):
        after_a = a(x)
        d = b(after_a) + after_a
        beside = c(x) + c(unconnected)

    assert longest_chain(d) == 2
    assert shortest_chain(d, x) == 1
    assert shortest_chain(d, unconnected) is None
    assert longest_chain(d + beside) == 2
    assert longest_chain(a(x)) == 0


def test_marked_steps_change_no_value_and_no_gradient():
    layer = nn.Linear(3, 3)
    x = torch.randn(2, 3, requires_grad=True)
    with marked_steps([layer]):
        output = layer(x)
    assert torch.equal(output, layer(x))

    (gradient,) = torch.autograd.grad(output.sum(), x)
    (unmarked_gradient,) = torch.autograd.grad(layer(x).sum(), x)
    assert torch.equal(gradient, unmarked_gradient)


@pytest.mark.parametrize("length", [2, 5, 9, 10, 28])
@pytest.mark.parametrize("name", ["convolution", "dilated"])
def test_one_layer_less_does_not_connect_the_words(name, length):
    def connects(layers):
        words = list(normal(0, length, 1, DIM).requires_grad_().unbind(0))
        outputs = ConvolutionNetwork(0, layers, name == "dilated")(words)
        (gradient,) = torch.autograd.grad(outputs[-1].sum(), words[0], materialize_grads=True)
        return bool((gradient != 0).any())

    layers = count_steps(name, length, seed=0)["steps"]
    assert connects(layers)
    assert not connects(layers - 1)
