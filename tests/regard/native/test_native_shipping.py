"""The wheel holds the compiled kernel and says which systems it fits; an environment without a compiler uses it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from regard.backends.native.build import HERE, LIBRARY, newest_glibc

from .fresh import ROOT, USE, Fresh, copied, distribution

OLDEST = (2, 28)  # the C library that the wheels of PyTorch need


@pytest.fixture
def fresh(tmp_path) -> Fresh:
    return Fresh(tmp_path / "fresh")


def test_the_wheel_holds_the_kernel_and_the_sources_that_it_is_checked_against(tmp_path):
    wheel = distribution("wheel", tmp_path)
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        assert file.read("regard/backends/native/libregard_native.so") == LIBRARY.read_bytes()
        assert b"Root-Is-Purelib: false" in file.read("regard-0.1.0.dist-info/WHEEL")
    assert {f"regard/backends/native/source/{path.name}" for path in (HERE / "source").iterdir()} <= names
    assert {str(path.relative_to(ROOT)) for path in (ROOT / "regard").rglob("*.py")} <= names


def test_the_tag_of_the_wheel_names_the_c_library_that_the_kernel_needs(tmp_path):
    needed = newest_glibc(LIBRARY)
    symbols = subprocess.run(
        ["readelf", "--version-info", str(LIBRARY)], capture_output=True, text=True, check=True
    ).stdout
    versions = [tuple(map(int, found)) for found in re.findall(r"GLIBC_(\d+)\.(\d+)", symbols)]
    assert needed == max(versions) <= OLDEST
    wheel = distribution("wheel", tmp_path)
    assert f"-py3-none-manylinux_{needed[0]}_{needed[1]}_" in wheel.name
    shown = subprocess.run([sys.executable, "-m", "auditwheel", "show", str(wheel)], capture_output=True, text=True)
    assert f'"manylinux_{needed[0]}_{needed[1]}_' in shown.stdout, shown.stdout + shown.stderr


@pytest.mark.slow
def test_an_environment_without_a_compiler_installs_the_wheel_and_uses_its_kernel(fresh, tmp_path):
    fresh.install(distribution("wheel", tmp_path / "dist"))
    place, backend = fresh.run("python", "-c", USE).split()
    assert str(fresh.folder) in place
    assert backend == "native"
    assert "native on cpu: ok" in fresh.run("regard", "doctor")


@pytest.mark.slow
def test_an_environment_with_a_compiler_builds_the_kernel_of_the_source_distribution(fresh, tmp_path):
    fresh.install(distribution("sdist", tmp_path / "dist"), path=os.environ["PATH"])
    place, backend = fresh.run("python", "-c", USE).split()
    assert str(fresh.folder) in place
    assert backend == "native"


@pytest.mark.slow
@pytest.mark.parametrize("editable", [False, True])
def test_pip_install_from_a_tree_builds_the_kernel(fresh, tmp_path, monkeypatch, editable):
    tree, built = copied(tmp_path / "tree"), LIBRARY.relative_to(ROOT)
    monkeypatch.setenv("REGARD_NATIVE_BUILD", "required")
    fresh.install(*(["--editable"] if editable else []), tree, path=os.environ["PATH"])
    place, backend = fresh.run("python", "-c", USE).split()
    assert backend == "native"
    installed = Path(place).parents[1]
    assert installed == tree if editable else fresh.folder in installed.parents
    assert (installed / built).is_file()
    assert "native on cpu: ok" in fresh.run("regard", "doctor")
