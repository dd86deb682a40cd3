"""Recurrent networks with attention: the translators of Bahdanau and Luong, and the LSTMN.

`memory` holds what is attended to, `cells` the step of each decoder, `translator` the whole model.
"""

from regard_lab.models.recurrent.cells import (
    AttentionCell,
    BahdanauCell,
    CellState,
    FixedVectorCell,
    LuongCell,
    Memory,
    MemoryAttention,
)
from regard_lab.models.recurrent.lstmn import LongShortTermMemoryNetwork, Tapes
from regard_lab.models.recurrent.translator import (
    RecurrentConfig,
    RecurrentTranslationState,
    RecurrentTranslator,
)

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
