"""Measured costs, by which plans compare backends; every such figure stands here.

The unit is an *operation*: the time that PyTorch's fused attention takes for one floating-point operation, in float32,
with vectors of 64 numbers, on one thread of a CPU. A *pace* is the time of one operation of a backend in that unit. A
*launch* is the start of one operation of PyTorch, in operations `LAUNCH`.

`regard bench --costs` measures each figure again on the CPU that it runs on and prints it beside the one that
stands here. Which processor a figure comes from stands beside it where that was recorded. A figure changes plans, and
with them the backend and the last bits of results, so it is changed alone, with a line in CHANGELOG.md.
"""

# By type of device. Those of the CPU were measured; those of cuda are estimates.
BYTE = {"cpu": 8.0, "cuda": 50.0}  # operations, for moving one byte to or from memory
LAUNCH = {"cpu": 1e6, "cuda": 1e9}  # operations, for launching one operation of PyTorch

# The fused backend, by the rows of a row block: the pace of a pair forward, and of one backward. Blocks of fewer rows
# compute fewer masked pairs, and each of their pairs takes longer.
ROW_BLOCK_PACE = {64: (1.09, 1.56), 256: (1.0, 1.0)}

# The streamed backend, beside the products of a pair.
STREAMED_PAIR = 70  # operations forward: maximum, difference, exponential and sum
STREAMED_PAIR_BACKWARD = 130  # operations backward: the exponential again and the products with it
# Launches of a call; its operations are small ones, which cost less than a launch each.
STREAMED_START = 10
STREAMED_BLOCK = 5  # launches of a score block

# Scores that are sums of tanh, for each term of a pair.
TANH_TERM = 32  # operations forward: a sum, a tanh and a product
TANH_TERM_BACKWARD = 80  # operations backward, beside computing the term again

# Statistics by a second pass over the scores.
STATISTICS_PAIR = 80  # operations of a pair, beside its score

# Dropout by hashing.
DROPOUT_PAIR = 700  # operations of the hash of one pair

# LSH attention, beside the products of a pair.
LSH_PAIR = 800  # operations of a pair of a tile forward: masks, sorting, small products
LSH_PAIR_BACKWARD = 1500  # operations of the same backward
LSH_DENSE_PAIR = 60  # operations of a pair of a few queries and all keys, in either direction

# The native kernel, by the instructions that it was compiled for; those with AVX-512 were measured on an AMD EPYC.
# The figures of NEON and of vectors of 16 bytes are assumed, since both ran only under emulation:
# NEON is as fast as PyTorch's fused attention. Vectors of 16 bytes are slower, since the compiler
# alone chooses their instructions.
KERNEL_PACE = {
    "vectors of 16 bytes": 4.0,
    "NEON": 1.0,
    "AVX2": 0.85,
    "AVX-512": 0.5,
    "AVX-512 with BF16": 0.5,
}
ASSUMED = ("vectors of 16 bytes", "NEON")  # instructions whose figures were not measured
KERNEL_PACE_BFLOAT16 = 0.3  # pace in bfloat16, by the instructions for it
KERNEL_PACE_FLOAT64 = 0.95  # pace in float64
KERNEL_TIMES_BY_ROW = 3.0  # factor of the pace for lists whose keys are read again for each row
KERNEL_STATISTICS_PAIR = 30  # operations of a pair for statistics of its row
KERNEL_WEIGHT_AGAIN = 60  # operations of a weight that is computed a second time, beside its score
# Pace of a recurrence, in operations of plain PyTorch instead of fused ones.
KERNEL_RECURRENCE_PACE = 0.8
