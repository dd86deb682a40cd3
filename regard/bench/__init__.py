"""Side by side with what else can be installed: the oracle first, then times taken in turns, then memory.

A case is a declaration in `cases`, a contender one in `ours` or `peers`; whoever answers wrongly is not timed,
whoever is missing is named. `examine` is the same check for every backend, on small problems.
"""

from regard.bench.case import Case, Contender, Contest, Promise
from regard.bench.cases import CASES
from regard.bench.health import Health, examine
from regard.bench.peers import PEERS
from regard.bench.report import describe_health, describe_results
from regard.bench.results import Results
from regard.bench.running import run_bench
from regard.bench.work import Tensors, Work, make_tensors

__all__ = [
    "run_bench",
    "Results",
    "describe_results",
    "CASES",
    "PEERS",
    "Case",
    "Contest",
    "Contender",
    "Promise",
    "Work",
    "Tensors",
    "make_tensors",
    "examine",
    "Health",
    "describe_health",
]
