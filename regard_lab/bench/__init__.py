"""Compare regard with other attention libraries: check results, then measure times in turns, then memory.

Cases are declared in `cases`, contenders in `ours` and `peers`. A contender with wrong results is not timed, and a
missing package is listed. `examine` checks every backend of this installation on small problems.
"""

from regard_lab.bench.cases import CASES
from regard_lab.bench.health import Health, examine
from regard_lab.bench.peers import PEERS
from regard_lab.bench.report import describe_health, describe_results
from regard_lab.bench.results import Results
from regard_lab.bench.running import run_bench
from regard_lab.bench.work import Case, Contender, Contest, Promise, Tensors, Work, make_tensors

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
