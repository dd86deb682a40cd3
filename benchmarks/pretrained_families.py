"""Compares models of transformers' families through regard with their own attention, and writes the table of families.

python benchmarks/pretrained_families.py [NAME ...]

The models are tiny, random and made from configs (tests/integrations/hugging_face_families.py); what is compared is in
tests/integrations/hugging_face_checks.py. Writes results/pretrained_families_cpu/, of which the page of families in the
documentation is made. With names, only these families are compared and nothing is written.
"""

import json
import platform
import sys
from datetime import date
from pathlib import Path

import torch
import transformers

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tests"), str(HERE.parent / "tests" / "integrations")]
import hugging_face_checks as checks  # noqa: E402
from hugging_face_families import BY_NAME  # noqa: E402

OUT = HERE / "results" / "pretrained_families_cpu"


def main(names: list[str]) -> int:
    """Return the exit code: 1 if a family is not as its status says."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    rows, faults = [], 0
    for name in names or BY_NAME:
        row = checks.row(BY_NAME[name])
        wrong = checks.faults(row)
        faults += len(wrong)
        rows.append(row)
        print(f"{name}: {row['status']}" + (f", but {'; '.join(wrong)}" if wrong else ""), flush=True)
    if not names and not faults:
        OUT.mkdir(parents=True, exist_ok=True)
        report = {
            "command": "python benchmarks/pretrained_families.py",
            "date": date.today().isoformat(),
            "versions": {
                "python": platform.python_version(), "torch": torch.__version__,
                "transformers": transformers.__version__,
            },
            "tolerances": {"logits": checks.TOLERANCE, "gradients": checks.GRADIENTS},
            "sizes": {"rows": checks.ROWS, "length": checks.LENGTH, "new tokens": checks.NEW},
            "families": rows,
        }  # fmt: skip
        (OUT / "families.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
