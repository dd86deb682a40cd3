"""Whether `torch.export` traces, which versions of PyTorch answer differently."""

import torch


def exporting() -> bool:
    """Whether `torch.export` traces the code that calls this, in Python or in a graph.

    `torch.compiler.is_exporting` is meant to say this. With PyTorch 2.11 it is always true in code that
    `torch.compile` traces, so the flag behind it is read.
    """
    return torch.compiler._is_exporting_flag
