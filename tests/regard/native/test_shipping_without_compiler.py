"""Without a compiler wheel and source distribution are made and installed too, and say what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from .fresh import ROOT, USE, Fresh, copied, distribution


@pytest.fixture
def fresh(tmp_path) -> Fresh:
    return Fresh(tmp_path / "fresh")


def test_without_the_kernel_the_wheel_fits_every_system(tmp_path):
    wheel = distribution("wheel", tmp_path, "off")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as file:
        assert not [name for name in file.namelist() if "libregard_native" in name]


def test_the_source_distribution_holds_every_file_of_the_package_and_nothing_compiled(tmp_path):
    with tarfile.open(distribution("sdist", tmp_path)) as file:
        names = {name.split("/", 1)[1] for name in file.getnames()}
    listed = subprocess.run(["git", "ls-files", "regard"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {*listed.split(), "hatch_build.py", "pyproject.toml", "README.md", "LICENSE"} <= names
    assert not [name for name in names if "libregard_native" in name or name.startswith("tests/")]


def test_a_setting_of_the_build_that_does_not_exist_is_named(tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    room = {**os.environ, "REGARD_NATIVE_BUILD": "maybe"}
    done = subprocess.run(command, cwd=ROOT, env=room, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "REGARD_NATIVE_BUILD is 'maybe'; it is auto, required or off" in done.stdout + done.stderr


@pytest.mark.slow
def test_an_environment_without_a_compiler_installs_the_source_distribution_and_computes_by_pytorch(fresh, tmp_path):
    printed = fresh.install(distribution("sdist", tmp_path / "dist"))
    assert "the native backend is left out" in printed
    assert fresh.run("python", "-c", USE).split()[1] == "fused"
    shown = fresh.run("regard", "doctor")
    assert "native on cpu: refused every problem" in shown
    assert "its library is not built; run python -m regard.backends.native.build" in shown
    refused = fresh.run("python", "-m", "regard.backends.native.build", fails=True)
    assert "no C++ compiler was found (g++, c++, clang++, the package ziglang, or the one named by $CXX)" in refused


@pytest.mark.slow
@pytest.mark.parametrize("editable", [False, True])
def test_where_the_build_is_off_pip_install_from_a_tree_compiles_nothing(fresh, tmp_path, monkeypatch, editable):
    tree = copied(tmp_path / "tree")
    monkeypatch.setenv("REGARD_NATIVE_BUILD", "off")
    fresh.install(*(["--editable"] if editable else []), tree, path=os.environ["PATH"])
    place, backend = fresh.run("python", "-c", USE).split()
    assert backend == "fused"
    installed = Path(place).parents[1]
    assert installed == tree if editable else fresh.folder in installed.parents
    assert not [path for path in (tree, installed) if list(path.rglob("libregard_native.*"))]
    assert "its library is not built; run python -m regard.backends.native.build" in fresh.run("regard", "doctor")


@pytest.mark.slow
def test_where_the_kernel_is_required_a_missing_compiler_is_an_error(fresh, tmp_path, monkeypatch):
    archive, tree = distribution("sdist", tmp_path / "dist"), copied(tmp_path / "tree")
    monkeypatch.setenv("REGARD_NATIVE_BUILD", "required")
    for what in ([archive], [tree], ["--editable", tree]):
        assert "no C++ compiler was found" in fresh.install(*what, fails=True)
    assert "No module named 'regard'" in fresh.run("python", "-c", "import regard", fails=True)
