"""What a translator looked at: maps as tensors, pictures, and honest numbers about *it*.

Looking leaves a model as it was. Sub-words are merged by one rule, every picture has one scale from 0 to 1,
shares are counted over all sentences, and nothing is chosen per sentence. matplotlib loads when a picture is drawn.
"""

from regard.inspection.head_grid import draw_heads
from regard.inspection.maps import KINDS, AttentionMaps, Kind, look, look_batch, looked_at, tell_look
from regard.inspection.pattern_picture import draw_pattern
from regard.inspection.picture import draw_maps
from regard.inspection.quality import Approximation, approximation
from regard.inspection.referents import (
    HONESTY,
    Agreement,
    HeadChoice,
    ItWeights,
    SwapCheck,
    choose_head,
    it_weights,
    referent_agreement,
    swap_check,
)
from regard.inspection.terminal import terminal_map, visible
from regard.inspection.watching import merge

__all__ = [
    # look
    "look",
    "look_batch",
    "AttentionMaps",
    "Kind",
    "KINDS",
    "merge",
    # draw and tell
    "draw_maps",
    "draw_heads",
    "draw_pattern",
    "terminal_map",
    "looked_at",
    "tell_look",
    "visible",
    # what *it* means
    "it_weights",
    "ItWeights",
    "choose_head",
    "HeadChoice",
    "referent_agreement",
    "Agreement",
    "swap_check",
    "SwapCheck",
    "HONESTY",
    # what cheaper attention would lose
    "approximation",
    "Approximation",
]
