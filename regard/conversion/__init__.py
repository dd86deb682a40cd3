"""Trained models with fewer or more key/value heads: folder in, folder out, and what that saves.

Our own models are converted whole; folders of the Llama layout tensor by tensor. Nothing is unpickled, and every
conversion is held against its oracle: with its heads repeated, the new model says exactly the same.
"""

from regard.conversion.folders import convert_kv_heads
from regard.conversion.heads import METHODS, Change, Conversion, resized
from regard.conversion.own_models import Converted, load_converted, with_kv_heads

__all__ = [
    "convert_kv_heads",
    "load_converted",
    "with_kv_heads",
    "resized",
    "METHODS",
    "Conversion",
    "Converted",
    "Change",
]
