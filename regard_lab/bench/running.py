"""Runs cases: each contender is checked, then timed in turns."""

import math
import time
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import Any, TypeVar

import torch

from regard.arguments import count_of, suggest
from regard.errors import ArgumentError, OccupiedError, UnsupportedError
from regard.storage.ownership import check_ours
from regard.storage.sealed_json import read_sealed
from regard_lab.bench.cases import cases_on, contests_of
from regard_lab.bench.judging import Correctness, judge, results_of
from regard_lab.bench.measuring import Pace, Times, take_turns, threads
from regard_lab.bench.peaks import Peaks, measure_peaks
from regard_lab.bench.processors import family
from regard_lab.bench.report import write_report
from regard_lab.bench.results import Results, environment
from regard_lab.bench.whole import WholeContest
from regard_lab.bench.work import Case, Contender, Contest, Promise, make_tensors
from regard_lab.text.remarks import Tell, silent

Record = dict[str, Any]
CPU_PACE = Pace()  # of CPU time, and of time on a GPU
WALL_PACE = Pace(rounds=7)
QUICK_CPU_PACE = Pace(rounds=7, shortest=0.002)
QUICK_WALL_PACE = Pace(rounds=3, shortest=0.002)


def hold(case: Case, contest: Contest | WholeContest, *, quick: bool, tell: Tell) -> Record:
    """Check and time all contenders of a contest; return the record for JSON.

    The record of a contender has a "status": measured, missing (a package), refused (it cannot compute this), left
    out (of a quick run), failed or wrong; all except "measured" have a "reason".
    """
    if isinstance(contest, WholeContest):
        return _hold_whole(case, contest, quick=quick, tell=tell)
    device = contest.work.device
    cpu_pace = QUICK_CPU_PACE if quick else CPU_PACE
    wall_pace = QUICK_WALL_PACE if quick else WALL_PACE
    contest_name = f"{case.name}, {contest.label}"
    records: dict[str, Record] = {}
    calls: dict[str, Callable[[], object]] = {}
    with threads(1):
        for contender in contest.contenders:
            records[contender.name] = _check(case, contest, contender, quick, tell)
        for contender in contest.contenders:
            if records[contender.name]["status"] == "measured":
                calls[contender.name] = _call(contest, contender)
        if calls and device == "cpu":
            tell(f"{contest_name}: CPU time on 1 thread")
            _add_times(records, "cpu", take_turns(calls, time.process_time, cpu_pace))
    if calls and device == "cpu":
        tell(f"{contest_name}: wall time on {count_of(torch.get_num_threads(), 'threads')}")
        _add_times(records, "wall", take_turns(calls, time.perf_counter, wall_pace))
    elif calls:
        tell(f"{contest_name}: time on {device}")
        _add_times(records, device, take_turns(calls, finished, cpu_pace))
    return {
        "label": contest.label,
        "work": str(contest.work),
        "ours": contest.contenders[0].name,
        "contenders": records,
        "amount": _amount(contest),
        "promises": [
            _promise_record(promise, records)
            for promise in contest.promises
            if promise.family in ("", family())
        ],
    }


def _check(case: Case, contest: Contest, contender: Contender, quick: bool, tell: Tell) -> Record:
    """The record of a contender before it is timed: whether it can run here, and whether its results are right."""
    absent = _absent(contest, contender, quick)
    if absent is not None:
        return absent
    tell(f"{case.name}, {contest.label}: checking {contender.name}")
    try:
        verdict = judge(contest, contender) if contender.checked else Correctness({})
        plan = None if contender.plan is None else _plan_name(contest, contender)
    except NotImplementedError as error:
        return {"status": "refused", "reason": _first_line(error)}
    except Exception as error:
        return {"status": "failed", "reason": f"{type(error).__name__}: {_first_line(error)}"}
    record: Record = {"errors": verdict.errors}
    if plan is not None:
        record["backend"] = plan
    if not verdict.right:
        reason = f"errors relative to the rounding bound: {verdict}"
        return record | {"status": "wrong", "reason": reason}

    notes = []
    if contender.own_dropout and contest.work.dropout > 0:
        notes.append("checked without dropout, since it uses other random numbers")
    if not contender.checked:
        notes.append("it computes no attention")
    return record | {"status": "measured", "notes": notes}


def _hold_whole(case: Case, contest: WholeContest, *, quick: bool, tell: Tell) -> Record:
    """The record of a contest of whole layers, models or training steps, whose sides are compared with the first."""
    name_of_contest = f"{case.name}, {contest.label}"
    records: dict[str, Record] = {}
    calls: dict[str, Callable[[], object]] = {}
    first_output: Any = None
    with threads(1):
        for side in contest.sides:
            missing = _missing_package(side.package)
            if missing is not None:
                records[side.name] = missing
                continue
            tell(f"{name_of_contest}: checking {side.name}")
            record: Record = {"status": "measured", "errors": {}, "notes": []}
            records[side.name] = record
            try:
                call = side.prepare()
                output = call()
            except Exception as error:
                reason = f"{type(error).__name__}: {_first_line(error)}"
                record |= {"status": "failed", "reason": reason}
                continue
            if side.note:
                record["notes"] = [side.note]
            elif first_output is None:
                first_output = output
            else:
                error = relative_error(output, first_output)
                record["errors"] = {"output": error / contest.largest_error}
                if not error <= contest.largest_error:
                    reason = (
                        f"its output differs from that of {contest.sides[0].name} by {error:.1e}"
                    )
                    record |= {"status": "wrong", "reason": reason}
                    continue
            calls[side.name] = call
        tell(f"{name_of_contest}: CPU time on 1 thread")
        pace = QUICK_CPU_PACE if quick else CPU_PACE
        if calls:
            _add_times(records, "cpu", take_turns(calls, time.process_time, pace))
        measured = {
            "label": contest.label,
            "work": contest.work,
            "ours": contest.sides[0].name,
            "contenders": records,
            "promises": [],
        }
        if contest.attention is not None and contest.sides[0].name in calls:
            measured["attention"] = contest.attention()
    return measured


def relative_error(output: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference relative to the largest number; inf for other sizes and numbers that are not finite."""
    if output.shape != expected.shape:
        return math.inf
    difference = float((output.double() - expected.double()).abs().max())
    largest = float(expected.double().abs().max())
    return difference / largest if math.isfinite(difference) and largest else math.inf


def _missing_package(packages: str) -> Record | None:
    for package in packages.split():
        if find_spec(package) is None:
            return {"status": "missing", "reason": f"the package {package} is not installed"}
    return None


def _absent(contest: Contest, contender: Contender, quick: bool) -> Record | None:
    device = contest.work.device
    if contender.device and contender.device != device:
        reason = f"it runs only on {contender.device}, and this is {device}"
        return {"status": "refused", "reason": reason}
    missing = _missing_package(contender.package)
    if missing is not None:
        return missing
    if quick and contender.compiles:
        reason = "its compilation takes tens of seconds, too long for a quick run"
        return {"status": "left out", "reason": reason}
    return None


def _amount(contest: Contest) -> Record:
    """What a contest computes, by which rates are compared with a peak; empty where nothing is known.

    One query over many keys reads them; more queries compute.
    """
    work = contest.work
    if work.q_len == 1:
        return {"bytes": work.read_bytes}
    ours = contest.contenders[0]
    if ours.plan is None or work.mechanism is not None:
        return {}
    pairs = ours.plan(work, make_tensors(work)).problem.kept_pairs
    if pairs is None:
        return {}
    return {"operations": work.operations(pairs), "dtype": work.dtype}


def _plan_name(contest: Contest, contender: Contender) -> str:
    work = contender.works_on(contest.work)
    assert contender.plan is not None
    return contender.plan(work, make_tensors(work)).backend


def _call(contest: Contest, contender: Contender) -> Callable[[], object]:
    work = contender.works_on(contest.work)
    calls = []
    for seed in range(work.caches):
        tensors = make_tensors(work, seed)
        attend = contender.prepare(work, tensors)
        calls.append(partial(results_of, work, attend, tensors) if work.backward else attend)
    if len(calls) == 1:
        return calls[0]
    turns = cycle(calls)
    return lambda: next(turns)()


def finished() -> float:
    """The time at which the GPU has computed all calls so far, in seconds."""
    torch.cuda.synchronize()
    return time.perf_counter()


def _add_times(records: dict[str, Record], clock: str, times: dict[str, Times]) -> None:
    for name, times_of_one in times.items():
        records[name][clock] = times_of_one.to_dict()


def _promise_record(promise: Promise, records: dict[str, Record]) -> Record:
    number = promise.measured(records)
    return {
        "found": number,
        "bound": promise.bound,
        "kept": None if number is None else promise.kept(number),
        "text": promise.sentence(number),
    }


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


R = TypeVar("R", bound=Results)


def run_bench(
    names: Iterable[str] = (),
    *,
    quick: bool = False,
    out: Path | None = None,
    resume: bool = False,
    device: str = "cpu",
    tell: Tell = silent,
) -> Results:
    """Measure cases; after each, write `bench.json` and `bench.md`.

    Args:
        names: names of cases of the device, keys of `cases_on(device)`; all by default.
        quick: smaller sizes, fewer rounds, and no contender that compiles.
        out: the folder of the results; None to write nothing.
        resume: continue the results in `out`.
        device: "cpu" or "cuda".
        tell: called with a message before each step.

    Returns:
        The results, with `resume` including those measured before.

    Raises:
        ArgumentError: an unknown case, or results that were measured in another environment.
        UnsupportedError: the device is not available.
        DataError: there is nothing to resume.
    """
    if device not in ("cpu", "cuda"):
        raise ArgumentError(f"device {device!r} is not supported; there are cpu and cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise UnsupportedError("device 'cuda' is not available: PyTorch finds no CUDA device")
    cases = cases_on(device)
    chosen = chosen_of("case", names, cases)
    command = ["regard bench"]
    if set(chosen) != set(cases):
        command += chosen
    if device == "cuda":
        command.append("--device cuda")
    if quick:
        command.append("--quick")
    results = begin(
        Results, out, quick=quick, resume=resume, device=device, command=" ".join(command)
    )

    if device == "cpu" and not results.peaks:
        tell("the most that one core of this processor does")
        results.peaks = measure_peaks().to_dict()

    def measure(name: str) -> Record:
        case = cases[name]
        contests = contests_of(case, quick=quick)
        records = [hold(case, contest, quick=quick, tell=tell) for contest in contests]
        return {"title": case.title, "contests": records}

    measured = measure_missing(results, chosen, out, tell, measure, write_report)
    if device == "cpu":
        # Again, since other load may have slowed down one of the two.
        measured.peaks = Peaks(**measured.peaks).or_higher(measure_peaks()).to_dict()
        if out is not None:
            measured.save(out)
            write_report(measured, out)
    return measured


def chosen_of(kind: str, names: Iterable[str], known: Iterable[str]) -> list[str]:
    """The names, or all that are known; an ArgumentError for an unknown one."""
    known = list(known)
    chosen = list(names) or known
    for name in chosen:
        if name not in known:
            raise ArgumentError(f"no {kind} is called {name!r}; {suggest(name, known)}")
    return chosen


def measure_missing(
    results: R,
    names: Iterable[str],
    out: Path | None,
    tell: Tell,
    measure: Callable[[str], Record],
    write: Callable[[R, Path], object],
) -> R:
    """Measure what has no results yet; after each name, save the results in `out` and write its report there."""
    names = list(names)
    tell(f"{count_of(len(names), 'cases')} to measure")
    for name in names:
        if name in results.cases:
            tell(f"{name}: measured before")
            continue
        results.cases[name] = measure(name)
        if out is not None:
            results.save(out)
            write(results, out)
    return results


def begin(
    results: type[R],
    out: Path | None,
    *,
    quick: bool,
    resume: bool,
    device: str,
    command: str,
) -> R:
    """Create results, or load those to continue.

    Args:
        command: the command line that repeats the measurement.

    Raises:
        ArgumentError: results that were measured in another environment, or no folder is given.
        DataError: there is nothing to resume.
        OccupiedError: `out` is a file, or a folder with other files than results.
        CheckpointError: damaged results.
    """
    here = environment(device)
    if resume:
        if out is None:
            raise ArgumentError("--resume needs the folder of the results, --out FOLDER")
        earlier = results.load(out)
        earlier.check_continues(here, quick)
        return earlier
    if out is not None and out.exists() and not out.is_dir():
        raise OccupiedError(f"{out} is a file; results need a folder")
    if out is not None:
        check_ours(out, {results.file: read_sealed}, "benchmark results")
        _check_same_family(results, out, here)
    return results(here, quick, command)


def _check_same_family(results: type[Results], out: Path, here: dict[str, Any]) -> None:
    """Raise if the results in a folder are of another family of processors: they cannot be measured again here."""
    if not (out / results.file).exists():
        return
    earlier = results.load(out).environment
    names = ("family", "device")
    if any(earlier.get(name) != here[name] for name in names):
        of = [
            " on ".join(str(each.get(name, "a family that it does not name")) for name in names)
            for each in (earlier, here)
        ]
        raise OccupiedError(
            f"{out} holds results of {of[0]}, and this is {of[1]}; choose another folder, so that both are kept"
        )
