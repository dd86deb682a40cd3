"""The long tier from the command line: a list of the runs, or one of them."""

import argparse
import sys
from pathlib import Path

from . import __doc__ as description
from .running import RESULTS, LongRun, forget, go_on, left, read
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
    options = parse(words)
    if not options.runs:
        list_runs(options.results)
        return 0
    code = 0
    try:
        for run in options.runs:
            if options.fresh:
                forget(run, options.results)
            cases = options.cases or run.cases
            code |= go_on(run, cases, options.minutes, options.shard, options.results)
    except KeyboardInterrupt:
        sentence = "interrupted; the same command goes on with the batch that was not finished"
        print(f"\n{sentence}", file=sys.stderr)
        return 130
    return code


def parse(words: list[str] | None) -> argparse.Namespace:
    """The options, with the runs that are named."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.long",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("name", nargs="*", help="the runs; all of them with `all`; without a name they are listed")
    add("--cases", type=int, help="how many cases instead of all")
    for_each = "for each run; a batch that began is ended"
    add("--minutes", type=minutes, default=LONGEST, help=for_each)
    a_part = "the I-th of N parts of the cases"
    add("--shard", type=shard, default=(1, 1), metavar="I/N", help=a_part)
    add("--fresh", action="store_true", help="forget what was found before")
    add("--results", type=Path, default=RESULTS, help="the file of results")
    options = parser.parse_args(words)
    names = list(RUNS) if options.name == ["all"] else options.name
    unknown = [name for name in names if name not in RUNS]
    if unknown:
        parser.error(f"there is no run {', '.join(unknown)}; the runs are {', '.join(RUNS)}")
    options.runs = [RUNS[name] for name in names]
    return options


def list_runs(path: Path) -> None:
    """Print one line for each run."""
    records = read(path)["runs"]
    for run in RUNS.values():
        print(line_of(run, records.get(run.name)))


def line_of(run: LongRun, record: dict | None) -> str:
    """The name of a run, how far it is, when, and what it shows."""
    done = run.cases - len(left(record, run.cases))
    when = f"{record['last']}, {len(record['wrong'])} wrong" if record else "not yet"
    return f"{run.name:12} {done:>7} of {run.cases:<7} {run.unit:22} {when:22} {run.claim}"


if __name__ == "__main__":
    sys.exit(main())
