"""What regard is measured against, each at the best settings that its documentation knows.

A peer is one contender and, if it needs a package, that package's name: a missing one is reported by it.
"""

from regard.bench.case import Contender
from regard.bench.peers.broadcast import BROADCAST
from regard.bench.peers.fast_transformers import FAST_TRANSFORMERS
from regard.bench.peers.flex import FLEX
from regard.bench.peers.hugging_face import HF_BIG_BIRD, LONGFORMER
from regard.bench.peers.local_attention import LOCAL_ATTENTION
from regard.bench.peers.performer_pytorch import PERFORMER_PYTORCH
from regard.bench.peers.reformer_pytorch import REFORMER
from regard.bench.peers.torch_sdpa import SDPA, SDPA_GROUPED, SDPA_MASK, SDPA_REPEATED, SDPA_SOFTMAX
from regard.bench.peers.xformers import XFORMERS

PEERS: dict[str, Contender] = {
    peer.name: peer
    for peer in (
        SDPA, SDPA_MASK, SDPA_GROUPED, SDPA_REPEATED, FLEX, LOCAL_ATTENTION, LONGFORMER, HF_BIG_BIRD, XFORMERS,
        SDPA_SOFTMAX, PERFORMER_PYTORCH, FAST_TRANSFORMERS, REFORMER, BROADCAST,
    )
}  # fmt: skip

__all__ = ["PEERS"]
