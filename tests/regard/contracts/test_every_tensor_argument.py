"""Every tensor of every public call may be any view of its numbers: negated, without memory, misaligned, strided."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed
from tensor_arguments import (
    WITHOUT_NUMBERS,
    Given,
    Tensor,
    calls,
    distributed_calls,
    public_arguments,
)

from regard.errors import RegardError

CLOSE = 1e-5


def negated(x: Tensor) -> Tensor:
    """The other sign in memory."""
    return x.clone() if x.dtype == torch.bool else torch._neg_view(-x)


def part_of_conjugate(x: Tensor) -> Tensor:
    """Every second number in memory, with the other sign."""
    if not x.is_floating_point():
        return negated(x)
    return torch.complex(torch.zeros_like(x), -x).conj().imag


def zeros_without_memory(x: Tensor) -> Tensor:
    return torch._efficientzerotensor(x.shape, dtype=x.dtype)


def zeros(x: Tensor) -> Tensor:
    return torch.zeros_like(x)


def expanded(x: Tensor) -> Tensor:
    """Strides of 0."""
    return x[:1].expand_as(x)


def repeated(x: Tensor) -> Tensor:
    return x[:1].repeat(len(x), *(1 for _ in x.shape[1:]))


def every_second(x: Tensor) -> Tensor:
    return torch.stack([x, torch.ones_like(x)], -1)[..., 0]


def transposed(x: Tensor) -> Tensor:
    return x.transpose(0, -1).contiguous().transpose(0, -1)


def shifted(x: Tensor) -> Tensor:
    """An odd offset in its storage."""
    room = x.new_ones(x.numel() + 3)
    room[3:] = x.flatten()
    return room[3:].view(x.shape)


def unaligned(x: Tensor) -> Tensor:
    """An address that is no multiple of a number's size, as of a file that is mapped into memory."""
    memory = bytearray(1) + bytearray(x.contiguous().numpy().tobytes())
    return torch.frombuffer(memory, dtype=x.dtype, offset=1).view(x.shape)


# Of an odd view: how it is made, and an ordinary tensor of equal numbers.
ODD: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "negated": (negated, torch.clone),
    "part of a conjugate": (part_of_conjugate, torch.clone),
    "zeros without memory": (zeros_without_memory, zeros),
    "expanded": (expanded, repeated),
    "every second number": (every_second, torch.clone),
    "transposed": (transposed, torch.clone),
    "shifted": (shifted, torch.clone),
    "unaligned": (unaligned, torch.clone),
}
CALLS = calls()
DISTRIBUTED = (
    "distributed.attention",
    "distributed.attention: ring",
    "distributed.attention: state",
    "distributed.attention_detail",
    "distributed.shard",
    "distributed.unshard",
)


@pytest.fixture
def one_process() -> Iterator[None]:
    """A process group of this process alone, unless there is one."""
    if torch.distributed.is_initialized():
        yield
        return
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def outcome(
    given: Given, name: str, x: Tensor, learns: bool
) -> tuple[list[Tensor], list[Tensor | None]] | str:
    """The results with this tensor, and its gradient if it learns; or the refusal."""
    leaf = x.detach().requires_grad_() if learns else x
    try:
        found = given.run(**{name: leaf})
    except RegardError as error:
        return type(error).__name__
    learned = [one for one in found if one.requires_grad]
    gradients: list[Tensor | None] = []
    if learns and learned:
        weights = [torch.arange(one.numel()).view_as(one) % 7 - 2.5 for one in learned]
        total = sum(
            (one * by).nan_to_num(0, 0, 0).sum() for one, by in zip(learned, weights, strict=True)
        )
        gradients = [*torch.autograd.grad(total, [leaf], allow_unused=True)]
    return [one.detach() for one in found], gradients


def same(found: Any, wanted: Any) -> bool:
    if isinstance(found, str) or isinstance(wanted, str):
        return found == wanted
    return all(map(close, found[0], wanted[0])) and (
        not found[1] or not wanted[1] or all(map(close, found[1], wanted[1]))
    )


def close(found: Tensor | None, wanted: Tensor | None) -> bool:
    if found is None or wanted is None:
        return found is wanted
    if found.shape != wanted.shape:
        return False
    most = wanted.double().nan_to_num(0, 0, 0).abs().max() if wanted.numel() else 0.0
    bound = CLOSE * max(1.0, float(most))
    return torch.allclose(found.double(), wanted.double(), rtol=0, atol=bound, equal_nan=True)


def wrong_arguments(given: Given) -> list[str]:
    """The arguments and views whose results differ from those of ordinary tensors."""
    wrong = []
    for name, x in given.tensors.items():
        expected: dict[Callable[[Tensor], Tensor], Any] = {}
        for kind, (odd, ordinary) in ODD.items():
            learns = x.is_floating_point() and odd is not zeros_without_memory
            if ordinary not in expected:
                expected[ordinary] = outcome(given, name, ordinary(x), learns)
            for time in ("first", "second"):  # the second call finds what the first one kept
                if not same(outcome(given, name, odd(x), learns), expected[ordinary]):
                    wrong.append(f"{name}, {kind}, {time} call")
    return wrong


@pytest.mark.parametrize("name", CALLS)
def test_results_depend_on_the_numbers_of_a_tensor_and_not_on_how_they_lie_in_memory(name):
    assert not wrong_arguments(CALLS[name])


@pytest.mark.parametrize("name", DISTRIBUTED)
@pytest.mark.usefixtures("one_process")
def test_the_same_holds_over_processes(name):
    assert not wrong_arguments(distributed_calls()[name])


@pytest.mark.usefixtures("one_process")
def test_every_tensor_argument_of_every_public_call_has_a_case():
    cases = {**CALLS, **distributed_calls()}
    covered = {
        f"{name.partition(':')[0]}({a})" for name, one in cases.items() for a in one.arguments
    }
    public = public_arguments().keys()
    assert len(public) > 200
    missing = sorted(public - covered - WITHOUT_NUMBERS.keys())
    assert not missing, f"add a case to tests/regard/contracts/tensor_arguments.py: {missing}"
    assert not WITHOUT_NUMBERS.keys() - public, "no public call has these"
    assert set(DISTRIBUTED) == distributed_calls().keys()
