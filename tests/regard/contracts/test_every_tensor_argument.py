"""Every tensor of every public call may be any view of its numbers: negated, without memory, misaligned, strided."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed
from tensor_arguments import (
    WITHOUT_NUMBERS,
    Tensor,
    TensorCall,
    calls,
    distributed_calls,
    public_arguments,
)
from views import negated, part_of_conjugate, zeros_without_memory

from regard.errors import RegardError

CLOSE = 1e-5


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
    "zeros without memory": (zeros_without_memory, torch.zeros_like),
    "expanded": (expanded, repeated),
    "every second number": (every_second, torch.clone),
    "transposed": (transposed, torch.clone),
    "shifted": (shifted, torch.clone),
    "unaligned": (unaligned, torch.clone),
}
# Halves of the table, each with a view whose sign is not in its memory and three that lie in memory in odd ways.
HALVES = (tuple(ODD)[::2], tuple(ODD)[1::2])
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
    given: TensorCall, name: str, x: Tensor, learns: bool
) -> tuple[list[Tensor], list[Tensor | None]] | str:
    """The results with this tensor, and its gradient if it learns; or the refusal."""
    leaf = x.detach().requires_grad_() if learns else x
    try:
        results = given.run(**{name: leaf})
    except RegardError as error:
        return type(error).__name__
    learned = [result for result in results if result.requires_grad]
    gradients: list[Tensor | None] = []
    if learns and learned:
        gradients = [*torch.autograd.grad(weighted_sum(learned), [leaf], allow_unused=True)]
    return [result.detach() for result in results], gradients


def weighted_sum(tensors: list[Tensor]) -> Tensor:
    """A sum to which each number adds by another weight, so that their places matter."""
    total = torch.zeros(())
    for x in tensors:
        weights = torch.arange(x.numel()).view_as(x) % 7 - 2.5
        total = total + (x * weights).nan_to_num(0, 0, 0).sum()
    return total


def same(outcome: Any, expected: Any) -> bool:
    if isinstance(outcome, str) or isinstance(expected, str):
        return outcome == expected
    results, gradients = outcome
    expected_results, expected_gradients = expected
    if not all(map(close, results, expected_results)):
        return False
    if not gradients or not expected_gradients:
        return True
    return all(map(close, gradients, expected_gradients))


def close(x: Tensor | None, expected: Tensor | None) -> bool:
    if x is None or expected is None:
        return x is expected
    if x.shape != expected.shape:
        return False
    most = expected.double().nan_to_num(0, 0, 0).abs().max() if expected.numel() else 0.0
    bound = CLOSE * max(1.0, float(most))
    return torch.allclose(x.double(), expected.double(), rtol=0, atol=bound, equal_nan=True)


def wrong_arguments(given: TensorCall, kinds: Iterable[str] = ODD) -> list[str]:
    """The arguments and views of these kinds whose results differ from those of ordinary tensors."""
    wrong = []
    for name, x in given.tensors.items():
        expected: dict[Callable[[Tensor], Tensor], Any] = {}
        for kind in kinds:
            odd, ordinary = ODD[kind]
            learns = x.is_floating_point() and odd is not zeros_without_memory
            if ordinary not in expected:
                expected[ordinary] = outcome(given, name, ordinary(x), learns)
            for call in ("first", "second"):  # the second one finds what the first one kept
                if not same(outcome(given, name, odd(x), learns), expected[ordinary]):
                    wrong.append(f"{name}, {kind}, {call} call")
    return wrong


@pytest.mark.each_value
@pytest.mark.parametrize("kinds", HALVES, ids=", ".join)
@pytest.mark.parametrize("name", CALLS)
def test_results_depend_on_the_numbers_of_a_tensor_and_not_on_how_they_lie_in_memory(name, kinds):
    assert not wrong_arguments(CALLS[name], kinds)


@pytest.mark.parametrize("name", DISTRIBUTED)
@pytest.mark.usefixtures("one_process")
def test_the_same_holds_over_processes(name):
    assert not wrong_arguments(distributed_calls()[name])


@pytest.mark.usefixtures("one_process")
def test_every_tensor_argument_of_every_public_call_has_a_case():
    covered = set()
    for name, case in {**CALLS, **distributed_calls()}.items():
        function = name.partition(":")[0]
        covered |= {f"{function}({argument})" for argument in case.arguments}
    public = public_arguments().keys()
    assert len(public) > 200
    missing = sorted(public - covered - WITHOUT_NUMBERS.keys())
    assert not missing, f"add a case to tests/regard/contracts/tensor_arguments.py: {missing}"
    assert not WITHOUT_NUMBERS.keys() - public, "no public call has these"
    assert set(DISTRIBUTED) == distributed_calls().keys()
