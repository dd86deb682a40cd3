"""What a group of heads becomes, against loops over heads."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import ArgumentError
from regard_lab.conversion import resized

SIZE = 3


def by_loops(tensor, before, after, method):
    """New head by new head, from the heads that its query heads used to read."""
    heads = [tensor[SIZE * j : SIZE * (j + 1)] for j in range(before)]
    queries = max(before, after)  # as many query heads show every group
    new = []
    for j in range(after):
        readers = [h for h in range(queries) if h // (queries // after) == j]
        read = list(dict.fromkeys(h // (queries // before) for h in readers))
        group = torch.stack([heads[one].double() for one in read])
        new.append(group[0] if method == "first" else group.sum(0) / len(read))
    return torch.cat(new).to(tensor.dtype)


@given(
    after=st.integers(1, 5),
    times=st.integers(1, 5),
    more=st.booleans(),
    method=st.sampled_from(["mean", "first"]),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    axes=st.sampled_from([(), (7,), (2, 5)]),
)
def test_each_new_head_is_what_its_query_heads_read_before(after, times, more, method, dtype, axes):
    before, after = (after, after * times) if more else (after * times, after)
    tensor = torch.randn(before * SIZE, *axes, generator=torch.Generator().manual_seed(1)).to(dtype)
    found = resized(tensor, before, after, method)
    assert (found.dtype, found.shape) == (dtype, (after * SIZE, *axes))
    torch.testing.assert_close(found, by_loops(tensor, before, after, method), rtol=2**-52, atol=2**-52)


def test_a_mean_is_rounded_once():
    tensor = torch.tensor([1.0, 2**-8, 2**-8, 0.0], dtype=torch.bfloat16)  # rounded on the way, the small ones vanish
    assert resized(tensor, 4, 1).item() == (1 + 2 * 2**-8) / 4


def test_repeating_and_pooling_again_changes_nothing():
    tensor = torch.randn(3 * SIZE, 7)
    assert torch.equal(resized(resized(tensor, 3, 6), 6, 3), tensor)


@pytest.mark.parametrize(("before", "after"), [(8, 3), (3, 8), (8, 0), (8, -2), (8, 2.0), (8, True)])
def test_heads_that_do_not_divide_are_refused(before, after):
    with pytest.raises(ArgumentError, match=f"{before} key/value heads cannot become"):
        resized(torch.zeros(before * SIZE), before, after)


def test_another_method_is_refused():
    with pytest.raises(ArgumentError, match="method is 'median'; there are mean, first, random"):
        resized(torch.zeros(4), 4, 2, "median")
