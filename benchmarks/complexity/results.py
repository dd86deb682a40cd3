"""What was measured of each row, as a file that is written after every row; and how much is measured."""

from dataclasses import dataclass
from typing import Any, ClassVar

from regard.reprs import brief
from regard_lab.bench.measuring import Pace
from regard_lab.bench.results import Results


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Args:
        trusted: a length counts if its call takes at least this many seconds.
        wanted: the least number of lengths that count.
        reach: the least length that every row is measured at, to find crossovers.
        longest: the most seconds of a call; a row ends before a length that would take longer.
        pace: number of samples of each length.
    """

    trusted: float
    wanted: int
    reach: int
    longest: float
    pace: Pace


THOROUGH = Effort(
    trusted=0.020,
    wanted=4,
    reach=192**2,
    longest=8.0,
    pace=Pace(rounds=5, slow_rounds=2),
)
QUICK = Effort(
    trusted=0.004,
    wanted=3,
    reach=48**2,
    longest=0.5,
    pace=Pace(rounds=3, slow_rounds=1, slow=0.2),
)


@brief
@dataclass
class CostTable(Results):
    """Results of all rows by name: times and memory by length, and the error against another backend."""

    file: ClassVar[str] = "complexity.json"

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """The records of the rows, by name."""
        return self.cases

    @property
    def effort(self) -> Effort:
        """How much was measured."""
        return QUICK if self.quick else THOROUGH

    @property
    def our_mistakes(self) -> list[str]:
        """Rows with a wrong result or none."""
        failed = {name: row for name, row in self.rows.items() if "reason" in row}
        return [f"{name}: {row['reason']}" for name, row in failed.items()]
