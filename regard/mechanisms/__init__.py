"""Mechanisms define how queries, keys and values become outputs: hashable declarations that a plan can carry.

Each declares what it may be combined with; learned tensors are passed to a call as `parameters=` and belong to modules.
A new mechanism is one file here and two export lines below; its class enrols itself, and the tests find it there.
"""

from regard.mechanisms.base import Mechanism
from regard.mechanisms.linear import EluPlusOne, FeatureMap, LinearTransformer
from regard.mechanisms.linformer import Linformer
from regard.mechanisms.lsh import LSH
from regard.mechanisms.random_features import Performer, RandomFeature
from regard.mechanisms.recurrent import (
    SSD,
    DeltaRule,
    GatedDelta,
    GatedLinear,
    KimiDelta,
    Lightning,
    Retention,
)
from regard.mechanisms.scores import (
    Additive,
    Concat,
    Dot,
    General,
    LocalPredictive,
    ScaledDot,
    Score,
)
from regard.mechanisms.softmax import Softmax
from regard.mechanisms.text import parse

__all__ = [
    "Mechanism",
    "LSH",
    "LinearTransformer",
    "FeatureMap",
    "EluPlusOne",
    "Performer",
    "RandomFeature",
    "Retention",
    "Lightning",
    "SSD",
    "GatedLinear",
    "DeltaRule",
    "GatedDelta",
    "KimiDelta",
    "Softmax",
    "Score",
    "ScaledDot",
    "Dot",
    "General",
    "Additive",
    "Concat",
    "LocalPredictive",
    "Linformer",
    "parse",
]
