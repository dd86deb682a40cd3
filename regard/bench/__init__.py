"""Compare regard with other attention libraries: check results, then measure times in turns, then memory.

Cases are declared in `cases`, contenders in `ours` and `peers`. A contender with wrong results is not timed, and a
missing package is listed. `examine` checks every backend of this installation on small problems.
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
