"""The compiled kernel on 64-bit Arm, emulated by qemu: the same calls are computed there and here.

    python -m tests.arm                 compares 108 fixed calls (36, with three instruction sets) and 200 drawn ones
    python -m tests.arm --cases 2000    compares more drawn calls

Each drawn call is compared with its formula in float64 on both machines, and its bits with those of the other machine.
Tensors end where memory ends, keys that no query may look at hold NaN or infinity, and 3 threads give the bits of 1.
"""
