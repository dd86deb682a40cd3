"""What cheaper attention would lose on a user's own tensors: error, mass, spread, time and memory.

`approximation` compares; its report reads as a table, as JSON and as a picture. Exact attention is streamed, so that
memory grows with the length.
"""

from regard.inspection.quality.candidates import Candidate
from regard.inspection.quality.comparing import approximation
from regard.inspection.quality.report import Approximation, LeftOut, Row

__all__ = ["approximation", "Approximation", "Row", "LeftOut", "Candidate"]
