"""The 25 goals of reliability and three more: what is asked, and how a row is read from what the runs found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .commands import names
from .pytests import EACH_LAW, law_names

Records = Mapping[str, dict[str, Any]]
Figures = tuple[str, bool]  # what was found, in words, and whether it is what is asked


@dataclass(frozen=True)
class Goal:
    """A row: its number, what is asked, the runs that measure it, how they are read, and a note for a miss."""

    number: int
    name: str
    asked: str
    runs: tuple[str, ...]
    read: Callable[[Records], Figures]
    note: str = ""

    def row(self, records: Records) -> dict[str, Any]:
        """The row as it stands in the file."""
        there = [records[name] for name in self.runs if name in records]
        if len(there) < len(self.runs):
            missing = ", ".join(name for name in self.runs if name not in records)
            figure, met, why = f"not run yet: {missing}", False, "run the command"
        else:
            figure, met = self.read(records)
            wrong = sum(len(one["wrong"]) for one in there)
            figure += f"; {wrong} went wrong" if wrong else ""
            met = met and not wrong
            short = ", ".join(
                f"{one['cases']:,} of {one['asked']:,} {one['unit']} were run"
                for one in there
                if one["cases"] < one["asked"]
            )
            went = f"see the sentences under `wrong` of {self.runs[0]} in the file" if wrong else ""
            why = "" if met else "; ".join(part for part in (short, went, self.note) if part)
        return {
            "number": self.number, "name": self.name, "asked": self.asked, "figure": figure, "met": met,
            "why": why or (self.note if not met else ""),
            "commands": [f"python -m tests.long {name}" for name in self.runs],
            "date": max((one["last"] for one in there), default=""),
        }  # fmt: skip


def _passed(*names: str) -> Callable[[Records], Figures]:
    """The tests that passed; met where every part was run and none failed or was skipped."""

    def read(records: Records) -> Figures:
        counts = [records[name]["counts"] for name in names]
        passed, skipped = (sum(one.get(word, 0) for one in counts) for word in ("passed", "skipped"))
        whole = all(records[name]["cases"] >= records[name]["asked"] for name in names)
        return f"{passed:,} tests passed" + (f", {skipped} skipped" if skipped else ""), whole and passed > 0

    return read


def _oracle(records: Records) -> Figures:
    counts = records["oracle"]["counts"]
    forward, gradients = counts.get("right", 0), counts.get("gradient comparisons", 0)
    said = f"{forward:,} comparisons of values, {gradients:,} of them of gradients too, {counts.get('off', 0)} off"
    return said, forward >= 100_000 and gradients >= 40_000


def _bounds(records: Records) -> Figures:
    name, worst = max(records["oracle"]["largest"].items(), key=lambda item: item[1])
    return f"the largest error is {worst:.2f} of its bound ({name.partition(',')[0]})", worst <= 1


def _counted(run: str, name: str, wanted: int, words: str) -> Callable[[Records], Figures]:
    def read(records: Records) -> Figures:
        number = records[run]["counts"].get(name, 0)
        return f"{number:,} {words}", number >= wanted

    return read


def _laws(records: Records) -> Figures:
    """Met where every law has its examples for each backend or mechanism that computes such calls at all."""
    record = records["laws"]
    pairs = {name: count for name, count in record["counts"].items() if name.startswith("law ")}
    refusing = {f"law {one.partition(':')[0]}" for one in record["noted"]}  # each sentence names a law for a backend
    least = min((count for name, count in pairs.items() if name not in refusing), default=0)
    laws = {name.partition("[")[0] for name in pairs}
    said = (
        f"{len(laws)} laws, {len(pairs)} with their backends and mechanisms: {least:,} examples of each at least, "
        f"{sum(pairs.values()):,} in all"
    ) + (f"; {len(refusing)} have fewer, because most calls are refused" if refusing else "")
    missing = {f"law {name.partition('::test_')[2]}" for name in law_names()} - laws
    return said, len(laws) >= 12 and least >= EACH_LAW and not missing


def _integrity(records: Records) -> Figures:
    flips, other = records["flips"]["counts"], records["structures"]["counts"]
    silent = len(records["flips"]["wrong"]) + len(records["structures"]["wrong"])
    seconds = max(records[name]["largest"]["seconds of CPU for one file"] for name in ("flips", "structures"))
    said = (
        f"{records['flips']['cases']:,} flips: {flips.get('refused', 0):,} refused, "
        f"{flips.get('read as before', 0):,} read as before; {records['structures']['cases']:,} structures: "
        f"{other.get('refused', 0):,} refused; {silent} silent; at most {seconds:.2f} s"
    )
    enough = records["flips"]["cases"] >= 10_000 and records["structures"]["cases"] >= 2_000
    return said, enough and silent == 0 and seconds <= 1


def _kills(records: Records) -> Figures:
    counts = records["kills"]["counts"]
    said = (
        f"{counts.get('kills', 0)} kills, {counts.get('kills_while_saving', 0)} of them while saving: "
        f"{counts.get('identical', 0)} of {counts.get('runs', 0)} trainings end in the same bits, "
        f"{counts.get('unreadable', 0)} unreadable folders"
    )
    return said, counts.get("kills", 0) >= 1_000 and counts.get("identical") == counts.get("runs")


def _faults(records: Records) -> Figures:
    counts = records["faults"]["counts"]
    bytes_, loads = counts.get("write errors at a byte", 0), counts.get("checkpoints that were there and load", 0)
    said = f"{counts.get('faults', 0)} faults, {bytes_} at a byte: all {loads} checkpoints that were there load"
    return said, bytes_ >= 200


def _commands(records: Records) -> Figures:
    counts = records["commands"]["counts"]
    each = [counts.get(f"regard {name}", 0) for name in names()]
    said = f"{len(each)} commands, {min(each)} invocations of each at least, {sum(each):,} in all"
    return said, min(each) >= 40


def _soak(records: Records) -> Figures:
    record = records["soak"]
    slope, files = record["largest"]["MiB a minute"], record["largest"]["open files more at the end"]
    rounds = record["counts"]["rounds"]
    said = f"{record['cases']} minutes, {rounds} rounds: {slope:+.2f} MiB a minute, {files:.0f} files more"
    return said, record["cases"] >= 60 and slope < 1 and files <= 0


def _orders(records: Records) -> Figures:
    quick, whole = records["shuffled"], records["elsewhere"]
    places = sorted(name.removeprefix("as ") for name in whole["counts"] if name.startswith("as "))
    said = (
        f"{quick['cases']} orders of the quick folders, {quick['counts'].get('passed', 0):,} tests passed; "
        f"{whole['cases']} of the whole suite, {whole['counts'].get('passed', 0):,} passed, "
        f"with these settings of `tests/machines.py`: {', '.join(places)}"
    )
    return said, quick["cases"] >= 20 and whole["cases"] >= 20


def _mutants(records: Records) -> Figures:
    counts, whole = records["mutants"]["counts"], records["mutants"]["cases"]
    killed = counts.get("killed", 0) + counts.get("timed out", 0)
    return f"{killed} of {whole} mutants killed", whole >= 300 and killed >= 0.85 * whole


GOALS = (
    Goal(1, "Oracle", "100,000 comparisons of values and 40,000 of gradients with formulas in float64, 0 off",
         ("oracle",), _oracle, "gradients of some sinks and two bounds were off before, and are right since"),
    Goal(2, "Tolerance", "every error within its derived bound", ("oracle",), _bounds),
    Goal(3, "Properties", "250,000 examples by hypothesis", ("examples",),
         _counted("examples", "examples", 250_000, "examples")),
    Goal(4, "Second derivatives", "300 checks by gradgradcheck", ("second",),
         _counted("second", "calls", 300, "checks")),
    Goal(5, "Laws", "12 metamorphic laws, each with 1,000 examples for each backend and mechanism", ("laws",), _laws),
    Goal(6, "Poisoned memory", "the whole suite passes where unwritten memory holds NaN", ("poison",),
         _passed("poison"), "tests of contracts, backends and caches are always run so"),
    Goal(7, "Caches", "20,000 steps of a state machine against a list", ("caches",),
         _counted("caches", "steps", 20_000, "steps of state machines")),
    Goal(8, "Equal bits", "bits equal over batches, positions, threads and processes; a negative control fails",
         ("bits",), _passed("bits")),
    Goal(9, "Dropout", "kept shares by their law, gradients with the same mask", ("dropout",), _passed("dropout")),
    Goal(10, "Memory", "linear where documented, measured in processes of their own", ("memory",), _passed("memory")),
    Goal(11, "Compiled", "one graph, few recompilations, right at unseen lengths", ("compiled",), _passed("compiled")),
    Goal(12, "Processes", "2 and 4 processes equal one to 1e-10", ("processes",), _passed("processes")),
    Goal(13, "Far offsets", "right beyond 2**31 elements, or refused", ("offsets",), _passed("offsets")),
    Goal(14, "Integrity", "10,000 flipped bits and 2,000 structures: none loads silently, within 1 s",
         ("flips", "structures"), _integrity),
    Goal(15, "Hostile files", "80 files: nothing runs, no socket, nothing outside is opened", ("hostile",),
         _counted("hostile", "refused", 80, "files refused, with nothing run or opened outside")),
    Goal(16, "Kills", "1,000 kills, ends with the same bits, no folder unreadable", ("kills",), _kills),
    Goal(17, "Faults", "write errors at 200 bytes, full disk, fsync, rename, memory: the checkpoint before loads",
         ("faults",), _faults),
    Goal(18, "Resuming", "the same bits from every step, also with accumulation", ("resume",), _passed("resume")),
    Goal(19, "Conversion", "the same logits, every key accounted for", ("conversion",), _passed("conversion")),
    Goal(20, "Server", "50,000 fuzzed requests, none answered with a fault", ("server",), _passed("server")),
    Goal(21, "Explorer", "1,000 hostile words in every place stay text", ("explorer",), _passed("explorer")),
    Goal(22, "Commands", "40 hostile invocations of every command: a documented exit code, and a sentence",
         ("commands",), _commands),
    Goal(23, "Soak", "60 minutes: less than 1 MiB a minute, no open file more", ("soak",), _soak,
         "earlier runs grew by 3.67 MiB a minute: caches of tokenisers, which were never freed"),
    Goal(24, "Mutants", "300 small changes of the code, 85% noticed by a test", ("mutants",), _mutants,
         "each is run against the quickest tests of its function; about a tenth of all changes give equal results"),
    Goal(25, "No flakes", "20 orders of the suite with fresh seeds, none fails",
         ("shuffled", "elsewhere"), _orders),
    Goal(26, "Garbage", "50,000 calls with garbage: a value, or a sentence of the family", ("garbage",),
         _counted("garbage", "calls", 50_000, "calls")),
    Goal(27, "Texts", "50,000 texts: a pattern that reads back, or a sentence", ("texts",),
         _counted("texts", "texts", 50_000, "texts")),
    Goal(28, "Slow tests", "all of them pass: the whole grid of backends, compiled kernels of FlexAttention, others",
         ("slow",), _passed("slow")),
)  # fmt: skip


def rows(records: Records) -> list[dict[str, Any]]:
    """The rows of all goals from what the runs found."""
    return [goal.row(records) for goal in GOALS]
