"""The encoder: whole texts as vectors, for words that were hidden and for classes, of any pattern and mechanism."""

from regard.models.encoder.config import EncoderConfig
from regard.models.encoder.model import TextEncoder

__all__ = ["TextEncoder", "EncoderConfig"]
