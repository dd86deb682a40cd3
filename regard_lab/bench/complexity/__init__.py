"""Measures how time and memory of layers and mechanisms grow with the length.

A row is a declaration in `rows`. Its exponents are fitted and reported beside those that its paper promises.
"""

from regard_lab.bench.complexity.measuring import run_complexity
from regard_lab.bench.complexity.report import CostTable, describe_table, read_row
from regard_lab.bench.complexity.rows import ROWS

__all__ = ["run_complexity", "describe_table", "read_row", "ROWS", "CostTable"]
