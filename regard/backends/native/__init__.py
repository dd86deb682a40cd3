"""The native backend: attention on the CPU by a kernel in C++, which is built where a compiler is.

`source` holds the kernel; its interface is `regard_native.h`. `build` compiles it, `library` loads it, `lowering` makes
its schedules, `kernel` runs it on tensors, `backend` assesses problems. An output row depends on its query and the keys
that it may look at alone: it has the same bits in any batch, with any number of threads, and computed at once or
continued with a cache of the same dtype.
"""

from regard.backends.native.backend import Native

__all__ = ["Native"]
