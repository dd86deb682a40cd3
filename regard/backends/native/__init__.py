"""The native backend: attention on the CPU by a kernel in C++ (`source`), which `build` compiles where a compiler is.

An output row depends on its query and the keys that it may look at alone: it has the same bits in any batch, with any
number of threads, and computed at once or continued with a cache of the same dtype.
"""

from regard.backends.native.backend import Native, kernel_of, offer_of_windows

__all__ = ["Native", "kernel_of", "offer_of_windows"]
