"""Compare regard with other attention libraries: check results, then measure times in turns.

Cases are declared in `cases`, contenders in `peers`. A contender with wrong results is not timed, and a missing package
is listed. `examine` checks every backend of this installation on small problems.
"""

from regard_lab.bench.health import Health, examine
from regard_lab.bench.report import describe_health, describe_results
from regard_lab.bench.results import Results
from regard_lab.bench.running import run_bench

__all__ = ["run_bench", "Results", "describe_results", "examine", "Health", "describe_health"]
