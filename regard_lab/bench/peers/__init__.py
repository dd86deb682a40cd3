"""The libraries that regard is compared with, each with the best settings of its documentation.

A peer is a `Contender`; if its package is not installed, the report lists it as missing.
"""

from regard_lab.bench.case import Contender
from regard_lab.bench.peers.mechanisms import FAST_TRANSFORMERS, PERFORMER_PYTORCH, REFORMER
from regard_lab.bench.peers.patterns import HF_BIG_BIRD, LOCAL_ATTENTION, LONGFORMER, XFORMERS
from regard_lab.bench.peers.pytorch import (
    BROADCAST,
    FLEX,
    SDPA,
    SDPA_GROUPED,
    SDPA_MASK,
    SDPA_REPEATED,
    SDPA_SOFTMAX,
)

PEERS: dict[str, Contender] = {
    peer.name: peer
    for peer in (
        SDPA, SDPA_MASK, SDPA_GROUPED, SDPA_REPEATED, FLEX, LOCAL_ATTENTION, LONGFORMER, HF_BIG_BIRD, XFORMERS,
        SDPA_SOFTMAX, PERFORMER_PYTORCH, FAST_TRANSFORMERS, REFORMER, BROADCAST,
    )
}  # fmt: skip

__all__ = ["PEERS"]
