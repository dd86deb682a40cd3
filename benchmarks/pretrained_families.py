"""Compares models of transformers' families through regard with their own attention, and writes the table of families.

python benchmarks/pretrained_families.py [NAME ... | --every [I/N | TYPE ...]]

The models are tiny, random and made from configs (hugging_face_families.py in tests/regard/integrations);
what is compared is in hugging_face_checks.py there. Writes results/pretrained_families_cpu/, of which the page of
families in the documentation is made. With names, only these families are compared and nothing is written.
With --every, each architecture that transformers can build small is compared, which takes minutes; a part of them, or
those of some types, take the place of theirs in the report. See tests/regard/integrations/hugging_face_sweep.py.
"""

import json
import platform
import sys
from datetime import date
from pathlib import Path
from typing import Any

import torch
import transformers

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tests"), str(HERE.parent / "tests" / "regard" / "integrations")]
import hugging_face_checks as checks  # noqa: E402
import hugging_face_sweep as sweep  # noqa: E402
from hugging_face_families import BY_NAME  # noqa: E402

from benchmarks.report import options  # noqa: E402

ROWS_AT_ONCE = 20  # that are compared before they are written
OUT = HERE / "results" / "pretrained_families_cpu"


def main(names: list[str]) -> int:
    """Return the exit code: 1 if a family is not as its status says."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    rows = []
    faults = 0
    for name in names or BY_NAME:
        row = checks.row(BY_NAME[name])
        wrong = checks.faults(row)
        faults += len(wrong)
        rows.append(row)
        line = f"{name}: {row['status']}"
        if wrong:
            line += f", but {'; '.join(wrong)}"
        print(line, flush=True)
    if not names and not faults:
        write(
            OUT / "families.json",
            "python benchmarks/pretrained_families.py",
            tolerances={"logits": checks.TOLERANCE, "gradients": checks.GRADIENTS},
            sizes={"rows": checks.ROWS, "length": checks.LENGTH, "new tokens": checks.NEW},
            families=rows,
        )
    return int(bool(faults))


def every(chosen: list[str]) -> int:
    """Compare all architectures, a part of them, or these types; the exit code is 1 if one is wrong."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity(50)
    known = sweep.architectures()
    rows = {}
    wrong = 0
    kinds = chosen
    part, slash, parts = (chosen or ["1/1"])[0].partition("/")
    if slash:
        kinds = known[int(part) - 1 :: int(parts)]
    for number, kind in enumerate(kinds, start=1):
        rows[kind] = sweep.row(kind)
        wrong += rows[kind]["status"] == sweep.WRONG
        print(f"{kind}: {rows[kind]['status']}", flush=True)
        if number % ROWS_AT_ONCE == 0 or number == len(kinds):
            write_rows(rows, known)
    return int(bool(wrong))


def write_rows(rows: dict[str, dict[str, Any]], known: list[str]) -> None:
    """Write rows in place of those of the report; a run that is stopped has written what it compared."""
    if sweep.REPORT.exists():
        rows = sweep.committed() | rows
    listed = [rows[kind] for kind in known if kind in rows]
    write(sweep.REPORT, "python benchmarks/pretrained_families.py --every", architectures=listed)


def write(path: Path, command: str, **content: object) -> None:
    """Write a report, with what it was made with."""
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    about = {"command": command, "date": f"{date.today()}", "versions": versions}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(about | content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--every", action="store_true")
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    sys.exit((every if asked.every else main)(asked.names))
