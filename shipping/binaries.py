"""Reads compiled libraries for Linux (ELF) and macOS (Mach-O): what they are for, what they need, what they export.

It reads the tables in the files and loads nothing, so libraries for other machines are checked too.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from regard.backends.native.build import BUILD_VERSION, MACH_O

ELF = b"\x7fELF"
# The numbers of processors in both formats, by the names of wheels' tags.
ELF_MACHINES = {62: "x86_64", 183: "aarch64"}
MACH_MACHINES = {0x01000007: "x86_64", 0x0100000C: "arm64"}
# Sections of ELF, and an undefined symbol in both formats.
SHT_DYNAMIC, SHT_DYNSYM, SHT_VERNEED = 6, 11, 0x6FFFFFFE
DT_NEEDED, DT_RPATH, DT_RUNPATH = 1, 15, 29
LOCAL, WEAK = 0, 2
# Load commands of Mach-O.
LC_SYMTAB, LC_LOAD_DYLIB, LC_ID_DYLIB, LC_CODE_SIGNATURE = 2, 12, 13, 29
N_EXT, N_TYPE, N_WEAK_REF = 1, 0x0E, 0x40
OF_LINKER = ("_mh_dylib_header", "__dso_handle")  # marks that Zig's linker leaves among the symbols


@dataclass(frozen=True)
class Library:
    """What a compiled library says of itself.

    system: "linux" or "darwin".
    machine: the processor, as tags of wheels name it.
    oldest: the oldest GNU C library or macOS that has what it needs.
    needs: the libraries that it links to.
    exports, imports: symbols; `optional` are imports that may be missing.
    paths: folders or names that the linker wrote into it.
    signed: whether it has a signature, without which Apple silicon loads nothing.
    """

    system: str
    machine: str
    oldest: tuple[int, int]
    needs: tuple[str, ...]
    exports: frozenset[str]
    imports: frozenset[str]
    optional: frozenset[str]
    paths: tuple[str, ...]
    signed: bool


def read_library(path: Path) -> Library:
    """What the library in this file says.

    Raises:
        ValueError: the file is neither ELF nor Mach-O of 64 bits.
    """
    content = path.read_bytes()
    if content[:4] == ELF and content[4:6] == b"\x02\x01":
        return _ElfFile(content).read()
    if content[:4] == MACH_O:
        return _read_mach_o(content)
    raise ValueError(f"{path.name} is no library of 64 bits for Linux or macOS")


def _text_at(content: bytes, place: int) -> str:
    return content[place : content.index(b"\0", place)].decode()


@dataclass(frozen=True)
class _Section:
    kind: int
    place: int
    size: int
    link: int
    entry: int


class _ElfFile:
    """The sections of an ELF file that tell what it needs and exports."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        (table,) = struct.unpack_from("<Q", content, 40)
        size, count = struct.unpack_from("<HH", content, 58)
        self.sections = []
        for number in range(count):
            fields = struct.unpack_from("<IIQQQQIIQQ", content, table + number * size)
            self.sections.append(_Section(fields[1], fields[4], fields[5], fields[6], fields[9]))

    def read(self) -> Library:
        (machine,) = struct.unpack_from("<H", self.content, 18)
        needs, paths = self._dynamic()
        exports, imports, optional = self._symbols()
        return Library(
            system="linux",
            machine=ELF_MACHINES.get(machine, f"processor {machine}"),
            oldest=max(self._glibc_versions(), default=(0, 0)),
            needs=needs,
            exports=frozenset(exports),
            imports=frozenset(imports),
            optional=frozenset(optional),
            paths=paths,
            signed=False,
        )

    def _of_kind(self, kind: int) -> list[_Section]:
        return [section for section in self.sections if section.kind == kind]

    def _text(self, section: _Section, offset: int) -> str:
        """A text of the table that a section links to."""
        return _text_at(self.content, self.sections[section.link].place + offset)

    def _dynamic(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        needs = []
        paths = []
        for section in self._of_kind(SHT_DYNAMIC):
            for place in range(section.place, section.place + section.size, 16):
                tag, value = struct.unpack_from("<qQ", self.content, place)
                if tag == DT_NEEDED:
                    needs.append(self._text(section, value))
                if tag in (DT_RPATH, DT_RUNPATH):
                    paths.append(self._text(section, value))
        return tuple(needs), tuple(paths)

    def _glibc_versions(self) -> list[tuple[int, int]]:
        versions = []
        for section in self._of_kind(SHT_VERNEED):
            place = section.place
            following = 1
            while following:
                _, count, _, first, following = struct.unpack_from("<HHIII", self.content, place)
                of_version = place + first
                for _ in range(count):
                    _, _, _, name, step = struct.unpack_from("<IHHII", self.content, of_version)
                    system, _, number = self._text(section, name).partition("_")
                    if system == "GLIBC":
                        major, minor = number.split(".")[:2]
                        versions.append((int(major), int(minor)))
                    of_version += step
                place += following
        return versions

    def _symbols(self) -> tuple[list[str], list[str], list[str]]:
        exports = []
        imports = []
        optional = []
        for section in self._of_kind(SHT_DYNSYM):
            for place in range(section.place, section.place + section.size, section.entry):
                name, info, _, index, _, _ = struct.unpack_from("<IBBHQQ", self.content, place)
                binding = info >> 4
                if binding == LOCAL:
                    continue
                text = self._text(section, name)
                if index:
                    exports.append(text)
                elif binding == WEAK:
                    optional.append(text)
                else:
                    imports.append(text)
        return exports, imports, optional


def _read_mach_o(content: bytes) -> Library:
    _, machine, _, _, count = struct.unpack_from("<5I", content)
    needs = []
    paths = []
    oldest = (0, 0)
    signed = False
    exports: list[str] = []
    imports: list[str] = []
    optional: list[str] = []
    place = 32
    for _ in range(count):
        command, size = struct.unpack_from("<II", content, place)
        if command in (LC_LOAD_DYLIB, LC_ID_DYLIB):
            (offset,) = struct.unpack_from("<I", content, place + 8)
            (needs if command == LC_LOAD_DYLIB else paths).append(_text_at(content, place + offset))
        elif command == BUILD_VERSION:
            (version,) = struct.unpack_from("<I", content, place + 12)
            oldest = (version >> 16, version >> 8 & 0xFF)
        elif command == LC_CODE_SIGNATURE:
            signed = True
        elif command == LC_SYMTAB:
            table, symbols, texts, _ = struct.unpack_from("<4I", content, place + 8)
            for number in range(symbols):
                entry = struct.unpack_from("<IBBHQ", content, table + 16 * number)
                name, kind, _, description, _ = entry
                if not kind & N_EXT:
                    continue
                text = _text_at(content, texts + name).removeprefix("_")
                if text in OF_LINKER:
                    continue
                if kind & N_TYPE:
                    exports.append(text)
                elif description & N_WEAK_REF:
                    optional.append(text)
                else:
                    imports.append(text)
        place += size
    return Library(
        system="darwin",
        machine=MACH_MACHINES.get(machine, f"processor {machine}"),
        oldest=oldest,
        needs=tuple(needs),
        exports=frozenset(exports),
        imports=frozenset(imports),
        optional=frozenset(optional),
        paths=tuple(paths),
        signed=signed,
    )
