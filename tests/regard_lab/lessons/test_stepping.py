"""Steps that wait for each other are counted as they are drawn, and counting changes nothing."""

import torch
from torch import nn

from regard_lab.teaching import stepping


def test_chains_of_a_drawn_graph():
    """a -> b -> d and a -> d; c stands beside them; after the block nothing is counted."""
    a, b, c = (nn.Linear(2, 2) for _ in range(3))
    x, other = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    with stepping.marked_steps([a, b, c]):
        first = a(x)
        joined, beside = b(first) + first, c(x) + c(other)
    assert (stepping.longest_chain(joined), stepping.shortest_chain(joined, x)) == (2, 1)
    assert stepping.shortest_chain(joined, other) is None
    assert stepping.longest_chain(joined + beside) == 2
    assert stepping.longest_chain(a(x)) == 0


def test_marked_steps_change_no_value_and_no_gradient():
    layer, x = nn.Linear(3, 3), torch.randn(2, 3, requires_grad=True)
    with stepping.marked_steps([layer]):
        output = layer(x)
    assert torch.equal(output, layer(x))
    assert torch.equal(*(torch.autograd.grad(y.sum(), x)[0] for y in (output, layer(x))))


def test_one_layer_less_does_not_connect_the_words():
    for name in ("convolution", "dilated"):
        for length in (2, 5, 9, 10, 28):
            layers = stepping.count_steps(name, length, seed=0)["steps"]
            words = stepping._leaves(length, 0)
            for count in (layers, layers - 1):
                outputs = stepping.Convolutions(0, count, name == "dilated")(words)
                assert (float(stepping._gradient(outputs, words[0])) > 0) == (count == layers)
