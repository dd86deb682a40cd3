"""LSH attention in memory linear in the length: keys are sorted by bucket, and tiles of queries look at nearby keys.

Rounds are merged by their log-sum-exp; a pair is computed in the first round that allows it. The backward pass sorts
and computes again.
"""

from regard.backends.lsh.backend import Hashed

__all__ = ["Hashed"]
