"""The library that is loaded was built from these sources, and needs nothing but libc and libm."""

import re
import shutil
import subprocess

from regard.backends.native import few_rows, library, program
from regard.backends.native.build import LIBRARY, digest, find_compiler


def test_a_library_of_other_sources_is_refused(monkeypatch, tmp_path):
    copy = tmp_path / "copy.so"
    shutil.copyfile(LIBRARY, copy)
    monkeypatch.setattr(library, "digest", lambda: "another")
    assert "built from other sources" in str(library.load(copy))


# As an earlier version, which lacks functions of this one.
EARLIER = f"""
extern "C" {{
int rg_version() {{ return {library.VERSION}; }}
const char *rg_sources() {{ return "x"; }}
}}
"""


def test_a_library_of_earlier_sources_that_lacks_functions_is_refused(tmp_path):
    source = tmp_path / "earlier.cpp"
    built = tmp_path / "earlier.so"
    source.write_text(EARLIER)
    command = [*find_compiler(), "-shared", "-fPIC", str(source), "-o", str(built)]
    subprocess.run(command, check=True)
    assert "built from other sources" in str(library.load(built))


def test_the_library_carries_the_digest_of_its_sources(native):
    assert native.handle.rg_sources().decode() == digest()


def test_constants_and_codes_of_python_are_those_of_the_header():
    header = (LIBRARY.parent / "source" / "regard_native.h").read_text()
    for name in ("VERSION", "MOST_ROWS", "SPAN"):
        assert f"#define RG_{name} {getattr(library, name)}" in header
    codes = re.findall(r"^\s*RG_(?:NO|BAD)_\w+ = (\d+)", header, re.MULTILINE)
    assert {int(code) for code in codes} == set(library._WRONG)
    assert f"#define RG_MOST_PROGRAM_ROWS {program.MOST_ROWS}\n" in header
    assert f"#define RG_MOST_BUFFERS {program.MOST_BUFFERS}\n" in header
    assert f"RG_BAD_SIZES = {program.BAD_SIZES}," in header
    of_few_rows = (LIBRARY.parent / "source" / "few_rows.h").read_text()
    assert f"#define RG_FEW_ROWS {few_rows.FEW_ROWS} " in of_few_rows
    assert f"RG_BAD_ID = {program.BAD_ID}," in header
    assert f"RG_NOT_FINITE = {program.NOT_FINITE}," in header


def test_the_library_links_to_libc_and_libm_alone():
    """It shares the OpenMP that PyTorch has loaded, and brings none of its own."""
    readelf = shutil.which("readelf")
    assert readelf is not None, "binutils come with every compiler"
    command = [readelf, "-d", str(LIBRARY)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"NEEDED.*\[([^.\]]+)", printed)
    assert needed
    assert set(needed) <= {"libc", "libm", "ld-linux-x86-64"}
