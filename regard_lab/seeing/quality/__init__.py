"""Compares approximations of attention with exact attention on a user's own tensors: error, time and memory.

`approximation` returns a report, which can be printed as a table, written as JSON or drawn. Exact attention is
streamed, so that memory is linear in the length.
"""

from regard_lab.seeing.quality.candidates import Candidate
from regard_lab.seeing.quality.report import Approximation, CandidateRow, LeftOut, approximation

__all__ = ["approximation", "Approximation", "CandidateRow", "LeftOut", "Candidate"]
