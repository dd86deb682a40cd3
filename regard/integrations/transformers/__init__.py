"""Models of transformers computed by regard: importing this registers `attn_implementation="regard"`.

`attach(model)` switches a model that is loaded, `attach(model, mesh=...)` divides it among processes, `explain` shows
how each layer is computed, `observe` collects statistics while it runs, `intervene` changes what heads return,
`change_attention` gives layers another pattern or mechanism, and `keep_entries` drops entries of a cache. Needs
pip install 'regard[transformers]'.
"""

from __future__ import annotations

from regard.packages import needed

with needed("transformers", "regard.integrations.transformers", "transformers"):
    from transformers import AttentionInterface, AttentionMaskInterface

from regard.integrations.transformers.attaching import NAME, attach, detach
from regard.integrations.transformers.attending import regard_attention
from regard.integrations.transformers.kept_cache import keep_entries
from regard.integrations.transformers.latents import latent_cache
from regard.integrations.transformers.masks import PatternMask, regard_mask
from regard.integrations.transformers.reading import UnreadMaskWarning
from regard.integrations.transformers.sharing import part_of_batch
from regard.integrations.transformers.surgery import AttentionChange, change_attention
from regard.integrations.transformers.watching import (
    Explained,
    ExplainedCall,
    Observed,
    ObservedCall,
    explain,
    intervene,
    observe,
)

__all__ = [
    "attach",
    "detach",
    "explain",
    "observe",
    "intervene",
    "change_attention",
    "keep_entries",
    "latent_cache",
    "part_of_batch",
    "Explained",
    "ExplainedCall",
    "Observed",
    "ObservedCall",
    "PatternMask",
    "AttentionChange",
    "UnreadMaskWarning",
]

AttentionInterface.register(NAME, regard_attention)
AttentionMaskInterface.register(NAME, regard_mask)
