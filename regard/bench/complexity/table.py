"""What was measured of each row, as one JSON file: written after every row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from regard.bench.results import Results


@dataclass
class Table(Results):
    """Records of rows by name: points of time and of memory, and the error against another path."""

    file: ClassVar[str] = "complexity.json"

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """The records, by the names of rows."""
        return self.cases

    @property
    def our_mistakes(self) -> list[str]:
        """Rows that answered wrongly or not at all."""
        return [f"{name}: {row['reason']}" for name, row in self.rows.items() if "reason" in row]
