"""Opens a wheel or a source distribution and compares it with this tree and with what its name promises."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable
from email import message_from_string
from pathlib import Path

from regard.backends.native.build import digest

from . import ROOT
from .binaries import Library, read_library

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PACKAGES = ("regard", "regard_lab")
LIBRARY = re.compile(r"regard/backends/native/libregard_native\.(so|dylib)")
TAG = re.compile(r"(manylinux|macosx)_(\d+)_(\d+)_(\w+)")
# What a library may link to: the C library, its mathematics and its loader.
SYSTEM_LIBRARIES = {
    "linux": re.compile(r"lib[cm]\.so\.6|ld-linux-.*"),
    "darwin": re.compile(r"/usr/lib/libSystem\.B\.dylib"),
}
# Files that a source distribution needs besides the packages.
OUTSIDE = {
    "hatch_build.py",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "CITATION.cff",
}
OF_HATCH = {"PKG-INFO", ".gitignore"}  # which hatchling adds


class WrongArchiveError(Exception):
    """A wheel or source distribution is not what it should be; the message is a sentence."""


def require(holds: bool, sentence: str) -> None:
    if not holds:
        raise WrongArchiveError(sentence)


def files_of_tree(tree: Path = ROOT) -> set[str]:
    """The files of both packages that git knows; of a tree without git, those that are there."""
    command = ["git", "-C", str(tree), "ls-files", "-z", *PACKAGES]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    if listed.returncode == 0 and listed.stdout:
        names = listed.stdout.split("\0")
        return {name for name in names if name and (tree / name).is_file()}
    files = (path for package in PACKAGES for path in (tree / package).rglob("*"))
    return {
        path.relative_to(tree).as_posix()
        for path in files
        if path.is_file() and "__pycache__" not in path.parts and path.stem != "libregard_native"
    }


def check_metadata(text: str, name: str) -> None:
    """METADATA or PKG-INFO says what pyproject.toml says."""
    metadata = message_from_string(text)
    for key, value in (
        ("Name", PROJECT["name"]),
        ("Version", PROJECT["version"]),
        ("License-Expression", PROJECT["license"]),
        ("Requires-Python", PROJECT["requires-python"]),
    ):
        require(
            metadata[key] == value, f"{key} of {name} is {metadata[key]!r} instead of {value!r}"
        )
    needed = set(metadata.get_all("Requires-Dist") or ())
    require(
        set(PROJECT["dependencies"]) <= needed, f"{name} lacks one of {PROJECT['dependencies']}"
    )


def check_sdist(path: Path) -> None:
    """A source distribution has every file of the packages and what builds them, and nothing else.

    Raises:
        WrongArchiveError: it lacks a file, holds another one, or its metadata differ from pyproject.toml.
    """
    with tarfile.open(path) as file:
        names = {member.name.partition("/")[2] for member in file if member.isfile()}
        root = f"{PROJECT['name']}-{PROJECT['version']}"
        stream = file.extractfile(f"{root}/PKG-INFO")
        assert stream is not None
        check_metadata(stream.read().decode(), path.name)
    expected = files_of_tree() | OUTSIDE
    missing = expected - names
    require(not missing, f"{path.name} lacks {some_of(missing)}")
    others = names - expected - OF_HATCH
    require(not others, f"{path.name} holds {some_of(others)}, which git does not know")


def some_of(names: Iterable[str]) -> str:
    """The first three of these names in order, and how many more there are."""
    listed = sorted(names)
    more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
    return ", ".join(listed[:3]) + more


def check_wheel(path: Path) -> list[str]:
    """What a wheel is, in short remarks.

    Raises:
        WrongArchiveError: its files, metadata or library are not what its name and this tree promise.
    """
    with zipfile.ZipFile(path) as file:
        contents = {name: file.read(name) for name in file.namelist()}
    info = f"{PROJECT['name']}-{PROJECT['version']}.dist-info"
    check_metadata(contents[f"{info}/METADATA"].decode(), path.name)
    require(f"{info}/licenses/LICENSE" in contents, f"{path.name} lacks the licence")
    check_record(contents, f"{info}/RECORD", path.name)
    expected = files_of_tree()
    missing = expected - set(contents)
    require(not missing, f"{path.name} lacks {some_of(missing)}")
    libraries = [name for name in contents if LIBRARY.fullmatch(name)]
    others = set(contents) - expected - set(libraries)
    others = {name for name in others if not name.startswith(f"{info}/")}
    require(not others, f"{path.name} holds {some_of(others)}, which git does not know")

    tag = path.stem.split("-", 2)[2]
    wheel = message_from_string(contents[f"{info}/WHEEL"].decode())
    require(wheel["Tag"] == tag, f"{path.name} names the tag {wheel['Tag']} inside")
    if tag == "py3-none-any":
        require(not libraries, f"{path.name} fits every system and holds {libraries}")
        require(wheel["Root-Is-Purelib"] == "true", f"{path.name} is not marked as pure")
        return ["no kernel", f"{len(contents)} files"]

    require(len(libraries) == 1, f"{path.name} holds {len(libraries)} libraries")
    require(wheel["Root-Is-Purelib"] == "false", f"{path.name} is marked as pure")
    content = contents[libraries[0]]
    with tempfile.TemporaryDirectory() as room:
        copy = Path(room, Path(libraries[0]).name)
        copy.write_bytes(content)
        library = read_library(copy)
    check_library(library, tag.split("-")[-1], path.name)
    require(digest().encode() in content, f"the kernel of {path.name} is of other sources")
    for folder in (str(ROOT), tempfile.gettempdir()):
        inside = f"{folder}/".encode() in content
        require(not inside, f"the kernel of {path.name} names a folder of this machine")
    kind = "GNU C library" if library.system == "linux" else "macOS"
    remarks = [
        f"{len(content) / 1e3:.0f} kB for {library.machine}",
        f"{kind} {library.oldest[0]}.{library.oldest[1]} or newer",
        f"{len(library.exports)} exported functions",
    ]
    if library.system == "linux":
        remarks.append(audited(path))
    return remarks


def hash_of(content: bytes) -> str:
    """The hash of a file as RECORD writes it."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def check_record(contents: dict[str, bytes], record: str, name: str) -> None:
    """RECORD lists every file of a wheel with its hash and size."""
    rows = list(csv.reader(io.StringIO(contents[record].decode())))
    require({row[0] for row in rows} == set(contents), f"RECORD of {name} lists other files")
    for file, hashed, size in rows:
        if file == record:
            continue
        content = contents[file]
        same = hashed == f"sha256={hash_of(content)}" and int(size) == len(content)
        require(same, f"RECORD of {name} has another hash of {file}")


def check_library(library: Library, tag: str, name: str) -> None:
    """A library fits the tag of its wheel and shows nothing but its functions."""
    parts = TAG.fullmatch(tag)
    require(parts is not None, f"the tag of {name} is none of Linux or macOS")
    assert parts is not None
    system = "linux" if parts[1] == "manylinux" else "darwin"
    promised = (int(parts[2]), int(parts[3]))
    is_for = (library.system, library.machine)
    require(is_for == (system, parts[4]), f"the kernel of {name} is for {' on '.join(is_for)}")
    oldest = ".".join(map(str, library.oldest))
    require(library.oldest <= promised, f"the kernel of {name} needs version {oldest}")
    others = [need for need in library.needs if not SYSTEM_LIBRARIES[system].fullmatch(need)]
    require(not others, f"the kernel of {name} links to {some_of(others)}")
    others = [symbol for symbol in library.exports if not symbol.startswith("rg_")]
    require(not others, f"the kernel of {name} exports {some_of(others)}")
    require("GOMP_parallel" in library.optional, f"{name} does not look for PyTorch's threads")
    others = [path for path in library.paths if not path.startswith("@rpath/")]
    require(not others, f"the kernel of {name} names {some_of(others)}")
    signed = library.signed or system == "linux"
    require(signed, f"the kernel of {name} is not signed, and Apple silicon would not load it")


def audited(path: Path) -> str:
    """What auditwheel says, which knows the symbols that each version of the GNU C library has."""
    command = [sys.executable, "-m", "auditwheel", "show", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    printed = " ".join((done.stdout + done.stderr).split())
    found = re.search(r'platform tag: "([^"]+)"', printed)
    require(found is not None, f"auditwheel said of {path.name}: {printed[-300:]}")
    assert found is not None
    return f"auditwheel: {found[1]}"
