"""lucidrains' performer-pytorch: its causal path without CUDA code, given the features elu + 1."""

from __future__ import annotations

import warnings
from importlib import import_module

from torch.nn.functional import elu

from regard.bench.case import Attend, Contender
from regard.bench.work import Tensors, Work
from regard.errors import UnsupportedError
from regard.patterns import Causal


def _prepare(work: Work, tensors: Tensors) -> Attend:
    if work.pattern != Causal() or work.group > 1:
        raise UnsupportedError(f"it is measured on causal attention without groups, not on {work}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of distutils, which it imports
        attend = import_module("performer_pytorch.performer_pytorch").causal_linear_attention_noncuda
    return lambda: attend(elu(tensors.q) + 1, elu(tensors.k) + 1, tensors.v)


PERFORMER_PYTORCH = Contender("performer-pytorch", _prepare, package="performer_pytorch")
