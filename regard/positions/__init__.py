"""Where a token stands: added to embeddings (Sinusoidal, Learned) or turned into queries and keys (Rotary)."""

from regard.positions.learned import Learned
from regard.positions.rotary import Rotary
from regard.positions.sinusoidal import Sinusoidal

__all__ = ["Sinusoidal", "Learned", "Rotary"]
