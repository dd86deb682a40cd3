"""What makes a pattern that holds a tensor equal only to itself and to copies of itself."""

from __future__ import annotations

import os

import torch

from regard.errors import UnsupportedError

_BITS = 128


def new_serial() -> int:
    """A number that no other call returns, in whatever process: 128 random bits of the system, and never 0.

    Nothing is counted, so that nothing is inherited by a forked process or begins again in a spawned one. A pickled
    pattern carries its serial along: its copy holds the same numbers, and so is equal to it.

    Raises:
        UnsupportedError: inside a compiled graph, which would give every run the serial of the first.
    """
    if torch.compiler.is_compiling():
        raise UnsupportedError(
            "a pattern that holds a tensor is not compiled, as each one is equal only to itself; make it, and call "
            "attention with it, outside"
        )
    return 1 << _BITS | int.from_bytes(os.urandom(_BITS // 8), "big")
