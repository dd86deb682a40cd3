"""Models of transformers computed by regard: importing this registers `attn_implementation="regard"`.

`attach(model)` switches a model that is loaded, `explain` says what became of each layer's mask and options, and
`observe` collects statistics while the model runs. Needs the extra: pip install 'regard[transformers]'.
"""

from regard.text.packages import needed

with needed("transformers", "regard.integrations.transformers", "transformers"):
    from transformers import AttentionInterface, AttentionMaskInterface

from regard.integrations.transformers.attaching import NAME, attach, detach
from regard.integrations.transformers.attending import UnreadMaskWarning, regard_attention
from regard.integrations.transformers.masks import PatternMask, regard_mask
from regard.integrations.transformers.watching import Explained, ExplainedCall, Observed, ObservedCall, explain, observe

AttentionInterface.register(NAME, regard_attention)
AttentionMaskInterface.register(NAME, regard_mask)

__all__ = [
    "attach",
    "detach",
    "explain",
    "observe",
    "Explained",
    "ExplainedCall",
    "Observed",
    "ObservedCall",
    "PatternMask",
    "UnreadMaskWarning",
]
