"""LSH attention in memory that grows with the length: sorted keys, and tiles of queries that look back a little.

Rounds are merged by their log-sum-exp; a pair counts in the first round that sees it. The backward pass sorts and
computes again.
"""

from regard.backends.lsh.backend import Hashed

__all__ = ["Hashed"]
