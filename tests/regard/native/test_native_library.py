"""The library that is loaded was built from these sources, and needs nothing but libc and libm."""

import shutil
import subprocess

from regard.backends.native import library
from regard.backends.native.build import LIBRARY, digest, find_compiler


def test_a_library_of_other_sources_is_refused(monkeypatch, tmp_path):
    other = tmp_path / "other.so"
    shutil.copyfile(LIBRARY, other)
    monkeypatch.setattr(library, "digest", lambda: "another")
    assert "built from other sources" in str(library.load(other))


def test_a_library_of_earlier_sources_that_lacks_functions_is_refused(tmp_path):
    source = tmp_path / "earlier.cpp"
    other = tmp_path / "earlier.so"
    source.write_text(
        f'extern "C" {{ int rg_version() {{ return {library.VERSION}; }} const char *rg_sources() {{ return "x"; }} }}'
    )
    subprocess.run(
        [*find_compiler(), "-shared", "-fPIC", str(source), "-o", str(other)], check=True
    )
    assert "built from other sources" in str(library.load(other))


def test_the_library_carries_the_digest_of_its_sources(native):
    assert native.handle.rg_sources().decode() == digest()


def test_constants_of_python_are_those_of_the_header():
    header = (LIBRARY.parent / "source" / "regard_native.h").read_text()
    for name, value in (
        ("VERSION", library.VERSION),
        ("MOST_ROWS", library.MOST_ROWS),
        ("SPAN", library.SPAN),
    ):
        assert f"#define RG_{name} {value}" in header
    codes = {
        int(line.split("=")[1].split(",")[0])
        for line in header.splitlines()
        if line.strip().startswith(("RG_NO_", "RG_BAD_"))
    }
    assert codes == set(library._WRONG)


def test_the_library_links_to_libc_and_libm_alone():
    """It shares the OpenMP that PyTorch has loaded, and brings none of its own."""
    readelf = shutil.which("readelf")
    assert readelf is not None, "binutils come with every compiler"
    text = subprocess.run(
        [readelf, "-d", str(LIBRARY)], capture_output=True, text=True, check=True
    ).stdout
    needed = {line.split("[")[1].split(".")[0] for line in text.splitlines() if "NEEDED" in line}
    assert needed <= {"libc", "libm", "ld-linux-x86-64"}
