"""The long tier from the command line: a list of the runs, or one of them."""

import argparse
import sys
from pathlib import Path

from . import __doc__ as described
from .running import RESULTS, Run, forget, go_on, left, read
from .runs import RUNS

LONGEST = 50.0  # minutes


def shard(text: str) -> tuple[int, int]:
    """`2/4` as (2, 4)."""
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no shard; give its number and how many there are, such as 2/4"
        )
    return int(part), int(parts)


def minutes(text: str) -> float:
    """A number of minutes that a shard may take."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 < number <= LONGEST:
        raise argparse.ArgumentTypeError(
            f"{text} minutes; a shard takes more than 0 and at most {LONGEST:.0f}"
        )
    return number


def main(words: list[str] | None = None) -> int:
    """0 if nothing was wrong, 1 if something was, 130 if it was interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.long",
        description=described,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "name", nargs="*", help="the runs; all of them with `all`; without a name they are listed"
    )
    parser.add_argument("--cases", type=int, help="how many cases instead of all")
    parser.add_argument(
        "--minutes", type=minutes, default=LONGEST, help="for each run; a batch that began is ended"
    )
    parser.add_argument(
        "--shard",
        type=shard,
        default=(1, 1),
        metavar="I/N",
        help="the I-th of N parts of the cases",
    )
    parser.add_argument("--fresh", action="store_true", help="forget what was found before")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the file of results")
    asked = parser.parse_args(words)
    names = list(RUNS) if asked.name == ["all"] else asked.name
    if unknown := [name for name in names if name not in RUNS]:
        parser.error(f"there is no run {', '.join(unknown)}; the runs are {', '.join(RUNS)}")
    if not names:
        listed(asked.results)
        return 0
    code = 0
    try:
        for name in names:
            if asked.fresh:
                forget(RUNS[name], asked.results)
            code |= go_on(
                RUNS[name],
                asked.cases or RUNS[name].cases,
                asked.minutes,
                asked.shard,
                asked.results,
            )
    except KeyboardInterrupt:
        print(
            "\ninterrupted; the same command goes on with the batch that was not finished",
            file=sys.stderr,
        )
        return 130
    return code


def listed(path: Path) -> None:
    """One line for each run."""
    records = read(path)["runs"]
    for run in RUNS.values():
        print(line_of(run, records.get(run.name)))


def line_of(run: Run, record: dict | None) -> str:
    """The name of a run, how far it is, when, and what it shows."""
    done = run.cases - len(left(record, run.cases))
    when = f"{record['last']}, {len(record['wrong'])} wrong" if record else "not yet"
    return f"{run.name:12} {done:>7} of {run.cases:<7} {run.unit:22} {when:22} {run.claim}"


if __name__ == "__main__":
    sys.exit(main())
