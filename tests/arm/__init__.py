"""The compiled kernel on 64-bit Arm, emulated by qemu: the same calls are computed there and here.

    python -m tests.arm                 the library is built, the digests of 108 calls and 200 drawn calls are compared
    python -m tests.arm --cases 2000    more drawn calls

Each drawn call is compared with its formula in float64 on both machines, and its bits with those of the other machine.
Tensors end where memory ends, keys that no query may look at hold NaN or infinity, and 3 threads give the bits of 1.
"""
