"""Views whose numbers are not those in their memory."""

import torch

Tensor = torch.Tensor


def negated(x: Tensor) -> Tensor:
    """The other sign in memory."""
    return x.clone() if x.dtype == torch.bool else torch._neg_view(-x)


def part_of_conjugate(x: Tensor) -> Tensor:
    """The imaginary part of a conjugate: every second number in memory, with the other sign."""
    if not x.is_floating_point():
        return negated(x)
    return torch.complex(torch.zeros_like(x), -x).conj().imag


def zeros_without_memory(x: Tensor) -> Tensor:
    """Zeros as autograd passes them on."""
    return torch._efficientzerotensor(x.shape, dtype=x.dtype)
