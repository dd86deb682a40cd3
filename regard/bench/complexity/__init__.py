"""The classic table of costs, measured: how time and memory of every layer and mechanism grow with the length.

A row is a declaration in `rows`; its exponents are fitted, and printed beside what its paper promises.
"""

from regard.bench.complexity.measuring import Table
from regard.bench.complexity.report import Reading, describe_table, read_row
from regard.bench.complexity.rows import ROWS, Call, Growth, Row
from regard.bench.complexity.running import run_complexity

__all__ = ["run_complexity", "describe_table", "read_row", "Reading", "ROWS", "Row", "Call", "Growth", "Table"]
