"""Libraries of other machines are read as they say of themselves, and an archive that promises too much is refused."""

import io
import platform
import re
import struct
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path, PurePosixPath

import pytest

from regard.backends.native.build import (
    BUILD_VERSION,
    LIBRARY,
    MACH_O,
    Target,
    newest_glibc,
    oldest_macos,
)
from shipping import ROOT, checking, release, trying
from shipping.binaries import Library, read_library
from shipping.checking import WrongArchiveError, check_library, check_wheel
from shipping.release import dated, remove_others
from shipping.trying import is_for_arm, is_native
from shipping.wheels import HASHES, NAMES, PURE, made_aside, require_tools, run_command

built = pytest.mark.skipif(not LIBRARY.is_file(), reason="the native library is not built here")


def mac_library() -> bytes:
    """A library for Apple silicon that only consists of its tables."""

    def text_command(kind: int, name: str) -> bytes:
        text = name.encode() + b"\0"
        text += b"\0" * (-len(text) % 8)
        return struct.pack("<6I", kind, 24 + len(text), 24, 0, 0, 0) + text

    names = b"\0_rg_forward\0_GOMP_parallel\0_malloc\0___dso_handle\0"
    symbols = (
        (names.index(b"_rg_"), 0x0F, 1, 0),
        (names.index(b"_GOMP"), 0x01, 0, 0x40),
        (names.index(b"_malloc"), 0x01, 0, 0x100),
        (names.index(b"___dso_handle"), 0x0F, 1, 0),
    )
    commands = [
        text_command(13, "@rpath/libregard_native.dylib"),
        text_command(12, "/usr/lib/libSystem.B.dylib"),
        struct.pack("<6I", BUILD_VERSION, 24, 1, 11 << 16 | 3 << 8, 0, 0),
        struct.pack("<4I", 29, 16, 0, 0),
    ]
    place = 32 + sum(map(len, commands)) + 24
    table = b"".join(struct.pack("<IBBHQ", *symbol, 0) for symbol in symbols)
    end = place + len(table)
    commands.append(struct.pack("<6I", 2, 24, place, len(symbols), end, len(names)))
    size = sum(map(len, commands))
    header = MACH_O + struct.pack("<7I", 0x0100000C, 0, 6, len(commands), size, 0, 0)
    return header + b"".join(commands) + table + names


@pytest.fixture
def mac(tmp_path: Path) -> Path:
    path = tmp_path / "libregard_native.dylib"
    path.write_bytes(mac_library())
    return path


def test_a_library_for_macos_says_what_it_is_for_and_what_it_needs(mac):
    library = read_library(mac)
    assert (library.system, library.machine, library.oldest) == ("darwin", "arm64", (11, 3))
    assert oldest_macos(mac) == (11, 3)
    assert newest_glibc(mac) is None
    assert library.needs == ("/usr/lib/libSystem.B.dylib",)
    assert library.exports == {"rg_forward"}
    assert library.imports == {"malloc"}
    assert library.optional == {"GOMP_parallel"}
    assert library.paths == ("@rpath/libregard_native.dylib",)
    assert library.signed
    check_library(library, "macosx_11_3_arm64", "a wheel")


@built
@pytest.mark.skipif(sys.platform != "linux", reason="it reads the library of Linux")
def test_the_library_of_this_machine_is_read_by_its_own_tables():
    library = read_library(LIBRARY)
    assert (library.system, library.machine) == ("linux", platform.machine())
    assert library.oldest == newest_glibc(LIBRARY)
    assert oldest_macos(LIBRARY) is None
    assert {"rg_forward", "rg_backward", "rg_use_threads"} <= library.exports
    assert {"malloc", "log2"} <= library.imports


OF_BUILDER = str(PurePosixPath("/", "of-builder", "x.dylib"))
OTHERS: dict[str, tuple[Callable[[Library], Library], str, str]] = {
    "for another processor": (
        lambda library: replace(library, machine="x86_64"),
        "macosx_11_3_arm64",
        "is for darwin on x86_64",
    ),
    "for another system": (lambda library: library, "manylinux_2_17_arm64", "is for darwin"),
    "that needs a newer macOS": (
        lambda library: library,
        "macosx_11_0_arm64",
        "needs version 11.3",
    ),
    "that links to something": (
        lambda library: replace(library, needs=("/opt/lib/libomp.dylib",)),
        "macosx_11_3_arm64",
        "links to /opt/lib/libomp.dylib",
    ),
    "that shows other functions": (
        lambda library: replace(library, exports=frozenset({"rg_forward", "main"})),
        "macosx_11_3_arm64",
        "exports main",
    ),
    "without threads": (
        lambda library: replace(library, optional=frozenset()),
        "macosx_11_3_arm64",
        "does not look for PyTorch's threads",
    ),
    "with a folder of its builder": (
        lambda library: replace(library, paths=(OF_BUILDER,)),
        "macosx_11_3_arm64",
        f"names {OF_BUILDER}",
    ),
    "without a signature": (
        lambda library: replace(library, signed=False),
        "macosx_11_3_arm64",
        "is not signed",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_library_that_does_not_fit_the_tag_is_refused(mac, name):
    change, tag, sentence = OTHERS[name]
    with pytest.raises(WrongArchiveError, match=re.escape(sentence)):
        check_library(change(read_library(mac)), tag, "a wheel")


METADATA = b"""\
Name: regard
Version: 0.1.0
License-Expression: Apache-2.0
Requires-Python: >=3.11
Requires-Dist: torch>=2.11
"""


def pure_wheel(folder: Path, **changed: bytes) -> Path:
    """A wheel without a kernel of two files, with its RECORD as it should be but for what is changed."""
    path = folder / "regard-0.1.0-py3-none-any.whl"
    info = "regard-0.1.0.dist-info"
    contents = {
        "regard/__init__.py": b"one = 1\n",
        f"{info}/METADATA": METADATA,
        f"{info}/WHEEL": b"Root-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/licenses/LICENSE": b"Apache\n",
    }
    rows = []
    for name, content in contents.items():
        rows.append(f"{name},sha256={checking.hash_of(content)},{len(content)}\n")
    record = f"{info}/RECORD"
    contents[record] = "".join([*rows, f"{record},,\n"]).encode()
    for name, content in changed.items():
        contents[name.replace("RECORD", record)] = content
    with zipfile.ZipFile(path, "w") as file:
        for name, content in contents.items():
            file.writestr(name, content)
    return path


def test_a_wheel_whose_files_were_changed_or_left_out_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(checking, "files_of_tree", lambda: {"regard/__init__.py"})
    assert check_wheel(pure_wheel(tmp_path))[0] == "no kernel"
    with pytest.raises(WrongArchiveError, match="another hash of regard/__init__"):
        check_wheel(pure_wheel(tmp_path, **{"regard/__init__.py": b"one = 2\n"}))
    with pytest.raises(WrongArchiveError, match="lists other files"):
        check_wheel(pure_wheel(tmp_path, **{"regard/more.py": b""}))
    kernel = {"regard/backends/native/libregard_native.so": b""}
    monkeypatch.setattr(checking, "check_record", lambda *arguments: None)
    with pytest.raises(WrongArchiveError, match=r"holds regard/scratch\.py, which git does not"):
        check_wheel(pure_wheel(tmp_path, **{"regard/scratch.py": b""}))
    with pytest.raises(WrongArchiveError, match="fits every system and holds"):
        check_wheel(pure_wheel(tmp_path, **kernel))
    monkeypatch.setattr(checking, "files_of_tree", lambda: {"regard/__init__.py", "regard/b.py"})
    with pytest.raises(WrongArchiveError, match="lacks regard/b"):
        check_wheel(pure_wheel(tmp_path))


def source_archive(folder: Path, *names: str) -> Path:
    """A source distribution of these files and of those that every one has."""
    path = folder / "regard-0.1.0.tar.gz"
    root = "regard-0.1.0"
    with tarfile.open(path, "w:gz") as file:
        for name in (*checking.OUTSIDE, *checking.OF_HATCH, *names):
            content = METADATA if name == "PKG-INFO" else b""
            member = tarfile.TarInfo(f"{root}/{name}")
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return path


def test_a_source_distribution_holds_what_git_knows_and_no_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(checking, "files_of_tree", lambda: {"regard/__init__.py"})
    checking.check_sdist(source_archive(tmp_path, "regard/__init__.py"))
    with pytest.raises(WrongArchiveError, match="lacks regard/__init__"):
        checking.check_sdist(source_archive(tmp_path))
    for other in ("runs/arm/archives/libc6.deb", "shipping/wheels.py", "regard/scratch.py"):
        with pytest.raises(WrongArchiveError, match=f"holds {re.escape(other)}"):
            checking.check_sdist(source_archive(tmp_path, "regard/__init__.py", other))


def test_a_release_removes_what_an_earlier_one_left_and_no_other_file(tmp_path):
    left = ("regard-0.0.9.tar.gz", "regard-0.0.9-py3-none-any.whl")
    kept = {"regard-0.1.0.tar.gz", HASHES, "notes.txt"}
    for name in (*left, *kept):
        (tmp_path / name).touch()
    remove_others(tmp_path, {"regard-0.1.0.tar.gz"})
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_a_wheel_is_tried_where_its_kernel_can_be_loaded(monkeypatch):
    monkeypatch.setattr(trying, "THIS_MACHINE", Target("linux", "x86_64"))
    names = ("manylinux_2_18_x86_64", "manylinux_2_18_aarch64", "macosx_11_0_arm64", "any")
    wheels = [Path(f"regard-0.1.0-py3-none-{name}.whl") for name in names]
    assert [is_native(path) for path in wheels] == [True, False, False, True]
    assert [is_for_arm(path) for path in wheels] == [False, True, False, False]


def test_names_of_wheels_are_targets_with_names_of_zig():
    targets = [Target(*name.split("-")) for name in NAMES if name != PURE]
    assert [str(target) for target in targets] == list(NAMES[:-1])
    assert [target.of_zig for target in targets] == [
        "x86_64-linux-gnu.2.18",
        "aarch64-linux-gnu.2.18",
        "aarch64-macos.11.0",
    ]


def test_a_release_needs_a_section_in_development_and_dates_it():
    changelog = (
        "# Changelog\n\n## 0.1.0 (in development)\n\nNo version has been released yet; see below.\n\n"
        "### 2026-11-29\n"
    )
    assert dated(changelog, date(2026, 12, 1)) == (
        "# Changelog\n\n## 0.1.0 (2026-12-01)\n\n### 2026-11-29\n"
    )
    with pytest.raises(WrongArchiveError, match="no section '## 0"):
        dated("# Changelog\n\n## 0.1.0 (2026-12-01)\n", date(2026, 12, 1))


EARLIER = (HASHES, "regard-0.1.0-py3-none-manylinux_2_17_aarch64.whl", "regard-0.1.0.tar.gz")


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """A folder with archives of an earlier build and another file."""
    for name in (*EARLIER, "notes.txt"):
        (tmp_path / name).write_text("earlier")
    return tmp_path


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize("error", [KeyboardInterrupt, WrongArchiveError, SystemExit])
def test_a_build_that_does_not_end_leaves_the_archives_of_the_last_one(shelf, error):
    def build_half() -> None:
        with made_aside(shelf) as partial:
            (partial / "regard-0.1.0.tar.gz").write_text("new")
            raise error

    before = contents(shelf)
    with pytest.raises(error):
        build_half()
    assert contents(shelf) == before


def test_a_release_that_stops_while_it_is_moved_keeps_no_hashes_of_an_earlier_one(
    shelf, monkeypatch
):
    def stopped(path: Path, target: Path) -> None:
        raise KeyboardInterrupt

    def build() -> None:
        with made_aside(shelf) as partial:
            (partial / "regard-0.1.0.tar.gz").write_text("new")
            (partial / HASHES).write_text("new")
            monkeypatch.setattr(Path, "replace", stopped)

    with pytest.raises(KeyboardInterrupt):
        build()
    assert HASHES not in contents(shelf)


def test_a_finished_archive_replaces_that_of_the_same_machine(shelf):
    left_by_a_killed_process = shelf / "partial" / "regard-0.1.0-py3-none-any.whl"
    left_by_a_killed_process.parent.mkdir()
    left_by_a_killed_process.write_text("half")
    wheel = "regard-0.1.0-py3-none-manylinux_2_18_aarch64.whl"
    with made_aside(shelf) as partial:
        (partial / wheel).write_text("new")
    assert contents(shelf) == {
        HASHES: "earlier",
        wheel: "new",
        "regard-0.1.0.tar.gz": "earlier",
        "notes.txt": "earlier",
    }


def test_missing_tools_are_named_before_anything_is_built():
    require_tools(("pip", "hatchling"))
    with pytest.raises(SystemExit, match=r"nothing is built: no_tool, nor_this cannot be imported"):
        require_tools(("pip", "no_tool", "nor_this"))


def test_a_command_that_fails_prints_a_sentence_and_an_interrupted_one_ends_with_130(capsys):
    def main(words: list[str]) -> None:
        raise KeyboardInterrupt if not words else WrongArchiveError("the wheel is wrong")

    with pytest.raises(SystemExit, match="the wheel is wrong"):
        run_command(main, ["x"])
    with pytest.raises(SystemExit) as stopped:
        run_command(main, [])
    assert stopped.value.code == 130
    assert "archives of earlier builds are as they were" in capsys.readouterr().err


def test_a_release_is_of_a_commit_and_a_dry_run_says_what_is_not_committed(
    shelf, monkeypatch, capsys
):
    def interrupted(tree: Path, out: Path, names: list[str]) -> None:
        assert "(2026-12-01)" in (tree / "CHANGELOG.md").read_text("utf-8")
        (out / "regard-0.1.0.tar.gz").write_text("half")
        raise KeyboardInterrupt

    before = contents(shelf)
    changelog = (ROOT / "CHANGELOG.md").read_bytes()
    monkeypatch.setattr(release, "require_tools", lambda tools: None)
    monkeypatch.setattr(release, "build_all", interrupted)
    monkeypatch.setattr(release, "uncommitted", lambda: ["a.py", "b.py"])
    words = ["--out", str(shelf), "--date", "2026-12-01"]
    with pytest.raises(KeyboardInterrupt):
        release.main(words)
    assert "changes that are not committed: a.py, b.py" in capsys.readouterr().out
    with pytest.raises(WrongArchiveError, match=r"of a commit; not committed: a\.py, b\.py"):
        release.main([*words, "--cut"])
    monkeypatch.setattr(release, "uncommitted", list)
    with pytest.raises(KeyboardInterrupt):
        release.main([*words, "--cut"])
    assert contents(shelf) == before
    assert (ROOT / "CHANGELOG.md").read_bytes() == changelog
