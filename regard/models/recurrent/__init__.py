"""Recurrent networks that attend: the translators of Bahdanau and Luong, and the cell that attends to its own past.

`memory` is what is attended to, `cells` the order of attending and moving on, `translator` the whole.
"""

from regard.models.recurrent.cells import AttentionCell, BahdanauCell, CellState, FixedVectorCell, LuongCell
from regard.models.recurrent.lstmn import LongShortTermMemoryNetwork, Tapes
from regard.models.recurrent.memory import Memory, MemoryAttention
from regard.models.recurrent.translator import RecurrentConfig, RecurrentTranslationState, RecurrentTranslator

__all__ = [
    "RecurrentTranslator",
    "RecurrentConfig",
    "RecurrentTranslationState",
    "AttentionCell",
    "BahdanauCell",
    "LuongCell",
    "FixedVectorCell",
    "CellState",
    "Memory",
    "MemoryAttention",
    "LongShortTermMemoryNetwork",
    "Tapes",
]
