"""Softmax attention with a softmax of its own, a block of scores at a time, in memory that grows with the length.

It computes what the fused operations cannot: softcap, dropout by `dropout_seed`, gradients of a bias, positions that
differ by batch row. The backward pass computes the blocks again from the log-sum-exp.
"""

from regard.kernels.streamed.backend import Streamed

__all__ = ["Streamed"]
