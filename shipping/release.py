"""Builds a release and tries it, without uploading anything: wheels for every machine, a source distribution, hashes.

    python -m shipping.release                     a dry run: everything lies in dist/release, the tree is unchanged
    python -m shipping.release --date 2026-12-01   with another date in the changelog
    python -m shipping.release --cut               also writes the dated changelog into this tree, to be committed

A copy of what git knows is built, in which the top section of CHANGELOG.md has the date. Each archive is checked; those
that this machine can run are installed into clean environments, where the first call of README.md and a lesson run.
Archives get to dist/release when all of this is done: an error or an interruption leaves the folder as it was. A dry
run says which changes are not committed; `--cut` refuses them.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection
from datetime import date
from pathlib import Path

from regard.storage.files import replace_file

from . import ROOT
from .checking import PROJECT, require, some_of
from .trying import CleanEnvironment, is_native
from .wheels import (
    HASHES,
    NAMES,
    TOOLS,
    build_all,
    check_all,
    made_aside,
    require_tools,
    run_command,
)

VERSION = PROJECT["version"]
UNRELEASED = re.compile(rf"^## {re.escape(VERSION)} \(in development\)$", re.MULTILINE)
NOT_YET = re.compile(r"^No version has been released yet;.*\n\n", re.MULTILINE)
FIRST_CALL = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LESSON = "causal"


def dated(changelog: str, day: date) -> str:
    """The changelog with a date in the heading of this version, and without the sentence that none was released.

    >>> print(dated(f"## {VERSION} (in development)", date(2026, 12, 1)))
    ## 0.1.0 (2026-12-01)
    """
    require(
        len(UNRELEASED.findall(changelog)) == 1,
        f"CHANGELOG.md has no section '## {VERSION} (in development)'; a release needs one",
    )
    return NOT_YET.sub("", UNRELEASED.sub(f"## {VERSION} ({day})", changelog))


def uncommitted() -> list[str]:
    """The files that git knows and that differ from the last commit."""
    command = ["git", "-C", str(ROOT), "diff", "--name-only", "-z", "HEAD"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [name for name in printed.split("\0") if name]


def copy_of_tree(folder: Path) -> Path:
    """The files that git knows, with what is changed and not committed."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    return folder


def check_with_twine(paths: list[Path]) -> str:
    """What twine says of the metadata and of the page that an index would show."""
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    printed = done.stdout + done.stderr
    require(done.returncode == 0 and "PASSED" in printed, f"twine refuses an archive: {printed}")
    return f"twine: {printed.count('PASSED')} archives passed"


def try_readme(archive: Path, readme: str) -> str:
    """Install an archive with its commands, and run the first call of the README and one lesson there."""
    first_call = FIRST_CALL.search(readme)
    require(first_call is not None, "README.md has no block of Python")
    assert first_call is not None
    with tempfile.TemporaryDirectory() as folder:
        environment = CleanEnvironment(Path(folder))
        # A source distribution is built with the tools of this environment: nothing is fetched.
        environment.install("--no-build-isolation", archive)
        environment.run("-W", "error", "-c", first_call[1])
        lesson = environment.run("-m", "regard_lab", "lesson", LESSON)
    require(bool(lesson.strip()), f"the lesson {LESSON} of {archive.name} printed nothing")
    return f"{archive.name}: the first call of README.md and the lesson {LESSON} ran"


def remove_others(folder: Path, kept: Collection[str]) -> None:
    """Remove the archives that earlier releases left in a folder beside those with the names `kept`."""
    for path in folder.glob(f"{PROJECT['name']}-*"):
        if path.name not in kept:
            path.unlink()


def hashes(paths: list[Path]) -> str:
    lines = []
    for path in sorted(paths):
        lines.append(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n")
    return "".join(lines)


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m shipping.release",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--date", type=date.fromisoformat, default=date.today())
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "release")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES), metavar="NAME")
    parser.add_argument("--cut", action="store_true", help="write the dated changelog here too")
    chosen = parser.parse_args(words)

    changelog = ROOT / "CHANGELOG.md"
    readme = (ROOT / "README.md").read_text("utf-8")
    text = dated(changelog.read_text("utf-8"), chosen.date)
    require_tools((*TOOLS, "twine"))
    changed = uncommitted()
    if changed:
        require(not chosen.cut, f"a release is of a commit; not committed: {some_of(changed)}")
        print(f"a dry run with changes that are not committed: {some_of(changed)}", flush=True)

    with made_aside(chosen.out) as partial:
        with tempfile.TemporaryDirectory() as folder:
            tree = copy_of_tree(Path(folder, "tree"))
            (tree / "CHANGELOG.md").write_text(text, "utf-8")
            sdist, wheels = build_all(tree, partial, chosen.only)
        check_all(sdist, wheels)
        paths = [sdist, *wheels.values()]
        print(check_with_twine(paths), flush=True)
        for archive in paths:
            if archive == sdist or is_native(archive):
                print(try_readme(archive, readme), flush=True)
        (partial / HASHES).write_text(hashes(paths), "utf-8")
    remove_others(chosen.out, {path.name for path in paths})
    if chosen.cut:
        replace_file(changelog, text.encode())
    print(f"{VERSION} of {chosen.date} lies in {chosen.out.name}; nothing was uploaded")


if __name__ == "__main__":
    run_command(main, sys.argv[1:])
