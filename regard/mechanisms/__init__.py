"""How queries, keys and values become outputs: hashable declarations that a plan can carry.

Each says what it may be combined with; what it learned is handed to a call as `parameters=` and lives in modules.
"""

from regard.mechanisms.base import Mechanism
from regard.mechanisms.feature_maps import EluPlusOne, FeatureMap, Products, Relu, SignedSoftmax
from regard.mechanisms.linear import LinearTransformer
from regard.mechanisms.linformer import Linformer
from regard.mechanisms.lsh import LSH
from regard.mechanisms.performer import Performer
from regard.mechanisms.random_feature import RandomFeature
from regard.mechanisms.scores import Additive, Concat, Dot, General, LocalPredictive, ScaledDot, Score
from regard.mechanisms.softmax import Softmax

__all__ = [
    "Mechanism",
    "LSH",
    "LinearTransformer",
    "FeatureMap",
    "EluPlusOne",
    "Relu",
    "SignedSoftmax",
    "Products",
    "Performer",
    "RandomFeature",
    "Softmax",
    "Score",
    "ScaledDot",
    "Dot",
    "General",
    "Additive",
    "Concat",
    "LocalPredictive",
    "Linformer",
]
