"""Conversion of trained models: to another number of key/value heads, to latent attention, to folders for servers.

Each reads a folder and writes another. Folders of Hugging Face are loaded and saved by transformers. Nothing is
unpickled. Each result is compared with a reference: the original model with its pooled heads repeated gives the same
outputs, and greedy texts of a folder for servers are compared with those of the model.
"""

from regard_lab.conversion.folders import convert_kv_heads
from regard_lab.conversion.heads import Change, Conversion
from regard_lab.conversion.latents import LatentSizes, load_latent, with_latents
from regard_lab.conversion.own_models import Converted, load_converted, with_kv_heads

__all__ = [
    "convert_kv_heads",
    "load_converted",
    "with_kv_heads",
    "load_latent",
    "with_latents",
    "LatentSizes",
    "Conversion",
    "Converted",
    "Change",
]
