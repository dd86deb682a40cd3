"""`regard conformance`: what libraries compute as attention, compared with each clause of the contract."""

from __future__ import annotations

import json
import os
import platform
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Annotated

from typer import Argument, Option

from regard.arguments import count_of, suggest
from regard.errors import ArgumentError, RegardError
from regard.storage.files import replace_file
from regard.testing.conformance import CLAUSES, IMPLEMENTATIONS
from regard.testing.conformance.report import markdown_lines, summary_lines, to_json
from regard.testing.conformance.running import Column, ask_library, missing_packages
from regard_lab.cli.console import check_place, counting, note, out_result
from regard_lab.cli.options import Json

ENDINGS = (".md", ".json")
MOST_PROCESSES = 4  # at a time; each holds PyTorch and a library


def conformance(
    libraries: Annotated[
        list[str] | None,
        Argument(metavar="LIBRARY", help="Such as sdpa or regard:native [default: all installed]."),
    ] = None,
    report: Annotated[
        Path | None,
        Option("--out", metavar="FILE", help="Write a report, as FILE.md or FILE.json."),
    ] = None,
    must_agree: Annotated[
        bool,
        Option("--must-agree", help="End with an error if an answer differs from the contract."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare what installed libraries compute as attention with a float64 oracle."""
    names = _checked_names(libraries)
    if report is not None:
        _check_report(report)
    columns = _asked(names)
    system = _system()
    out_result(as_json, lambda: to_json(columns, system), lambda: summary_lines(columns))
    if report is not None:
        _write_report(report, columns, system)
    if must_agree:
        _refuse_other_answers(columns)


def _asked(names: list[str]) -> list[Column]:
    """The answers of implementations, as many at a time as there are processors: each is a process of its own."""
    counted = Lock()
    with counting("asking", len(names) * len(CLAUSES)) as progress:

        def count(done: int) -> None:
            with counted:
                progress(done)

        def ask(name: str) -> Column:
            return ask_library(name, progress=count)

        with ThreadPoolExecutor(min(MOST_PROCESSES, os.cpu_count() or 1)) as pool:
            return list(pool.map(ask, names))


def _checked_names(libraries: list[str] | None) -> list[str]:
    """The implementations to ask; those whose packages are missing are left out, or refused if they were named."""
    for name in libraries or ():
        if name not in IMPLEMENTATIONS:
            raise ArgumentError(
                f"there is no implementation {name!r}; {suggest(name, IMPLEMENTATIONS)}"
            )
        missing = missing_packages(name)
        if missing:
            raise ArgumentError(f"{name} needs {', '.join(missing)}, which is not installed")
    if libraries:
        return libraries
    left_out = [name for name in IMPLEMENTATIONS if missing_packages(name)]
    if left_out:
        note(f"not installed, so not asked: {', '.join(left_out)}")
    return [name for name in IMPLEMENTATIONS if name not in left_out]


def _check_report(report: Path) -> None:
    if report.suffix not in ENDINGS:
        raise ArgumentError(f"the report is {report}; give it a name that ends in .md or .json")
    check_place(report, "report")


def _write_report(report: Path, columns: list[Column], system: str) -> None:
    if report.suffix == ".json":
        text = json.dumps(to_json(columns, system), ensure_ascii=False)
    else:
        text = "\n".join(markdown_lines(columns, system))
    replace_file(report, (text + "\n").encode())
    note(f"the report is {report}")


def _system() -> str:
    """The system and the processor's family, beside which answers are read."""
    return f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"


def _refuse_other_answers(columns: list[Column]) -> None:
    others = {
        f"{column.library}: {name}"
        for column in columns
        for name, reply in column.replies.items()
        if reply.status not in ("agrees", "no word")
    }
    if others:
        first = ", ".join(sorted(others)[:5])
        raise RegardError(f"{count_of(len(others), 'answers')} differ from the contract: {first}")
