"""Wheels and source distributions hold the kernel or do without it, and new environments install and use them."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
import torch

from regard.backends.native.build import HERE, LIBRARY, newest_glibc

ROOT = Path(__file__).parents[3]
OLDEST = (2, 28)  # the C library that the wheels of PyTorch need
built = pytest.mark.skipif(not LIBRARY.is_file(), reason="the native library is not built here")
USE = """
import torch, regard as rg
from regard.testing.health import check_backend
q = torch.randn(1, 2, 40, 8)
plan = rg.plan_attention(q, q, q, pattern="causal")
found, expected = (rg.attention(q, q, q, pattern="causal", backend=name) for name in ("auto", "reference"))
assert (found - expected).abs().max() < 1e-5
native = check_backend("native")
print(rg.__file__, plan.backend, native.status, *native.refused.values(), sep="\\n")
"""
BUILD = "its library is not built; run python -m regard.backends.native.build"


def distribution(kind: str, folder: Path, setting: str = "auto") -> Path:
    """A wheel or a source distribution of this tree."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    room = {**os.environ, "REGARD_NATIVE_BUILD": setting}
    done = subprocess.run(command, cwd=ROOT, env=room, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = folder.iterdir()
    return found


def copied(folder: Path) -> Path:
    """The files of this tree that git knows, in another folder: nothing is compiled there."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    return folder


class Fresh:
    """A new environment that sees the packages of this one, but neither regard nor a compiler."""

    def __init__(self, folder: Path) -> None:
        self.folder, packages = folder, folder / "packages"
        venv.create(folder / "room", with_pip=False)
        packages.mkdir()
        for path in Path(torch.__file__).parents[1].iterdir():
            if "regard" not in path.name and "ziglang" not in path.name:
                (packages / path.name).symlink_to(path)
        (site,) = (folder / "room").glob("lib/python*/site-packages")
        (site / "others.pth").write_text(f"{packages}\n")
        (folder / "empty").mkdir()

    def run(self, *command: str, path: str | None = None, fails: bool = False) -> str:
        """What a command prints, with these programs on its path; none of them if not given."""
        room = {
            name: value for name, value in os.environ.items() if name not in ("CXX", "PYTHONPATH")
        }
        room["PATH"] = str(self.folder / "empty") if path is None else path
        program, *words = command
        full = [str(self.folder / "room" / "bin" / program), *words]
        done = subprocess.run(
            full, cwd=self.folder, env=room, capture_output=True, text=True, check=False
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    def install(self, *what: Path | str, path: str | None = None, fails: bool = False) -> str:
        """Install without an index: PyTorch and the build system are there already, and nothing is fetched."""
        words = "install", "--no-index", "--no-build-isolation", "--verbose", *map(str, what)
        return self.run("python", "-m", "pip", *words, path=path, fails=fails)

    def uses(self) -> list[str]:
        """The file of the package that is installed, the backend of a call, the state of native, and its refusals."""
        return self.run("python", "-c", USE).splitlines()


@pytest.fixture
def fresh(tmp_path: Path) -> Fresh:
    return Fresh(tmp_path / "fresh")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return distribution("wheel", tmp_path_factory.mktemp("wheel"))


@built
def test_the_wheel_holds_the_kernel_and_the_sources_that_it_is_checked_against(wheel):
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        assert file.read("regard/backends/native/libregard_native.so") == LIBRARY.read_bytes()
        assert b"Root-Is-Purelib: false" in file.read("regard-0.1.0.dist-info/WHEEL")
    assert {
        f"regard/backends/native/source/{path.name}" for path in (HERE / "source").iterdir()
    } <= names
    assert {str(path.relative_to(ROOT)) for path in (ROOT / "regard").rglob("*.py")} <= names


@built
def test_the_tag_of_the_wheel_names_the_c_library_that_the_kernel_needs(wheel):
    needed = newest_glibc(LIBRARY)
    symbols = subprocess.run(
        ["readelf", "--version-info", str(LIBRARY)], capture_output=True, text=True, check=True
    ).stdout
    versions = [tuple(map(int, found)) for found in re.findall(r"GLIBC_(\d+)\.(\d+)", symbols)]
    assert needed == max(versions) <= OLDEST
    assert f"-py3-none-manylinux_{needed[0]}_{needed[1]}_" in wheel.name
    shown = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", str(wheel)], capture_output=True, text=True
    )
    assert f'"manylinux_{needed[0]}_{needed[1]}_' in shown.stdout, shown.stdout + shown.stderr


@built
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_an_environment_uses_the_kernel_of_the_wheel_or_builds_it(fresh, tmp_path, kind):
    fresh.install(
        distribution(kind, tmp_path / "dist"), path=None if kind == "wheel" else os.environ["PATH"]
    )
    place, *found = fresh.uses()
    assert str(fresh.folder) in place
    assert found[:2] == ["native", "ok"]


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["required", "off"])
@pytest.mark.parametrize("editable", [False, True])
def test_pip_install_from_a_tree_builds_the_kernel_unless_it_is_off(
    fresh, tmp_path, monkeypatch, editable, setting
):
    tree = copied(tmp_path / "tree")
    kernel = LIBRARY.relative_to(ROOT)
    monkeypatch.setenv("REGARD_NATIVE_BUILD", setting)
    fresh.install(*(["--editable"] if editable else []), tree, path=os.environ["PATH"])
    place, backend, state, *reasons = fresh.uses()
    installed = Path(place).parents[1]
    assert installed == tree if editable else fresh.folder in installed.parents
    if setting == "required":
        assert (backend, state) == ("native", "ok")
        assert (installed / kernel).is_file()
    else:
        assert (backend, state) == ("fused", "refused")
        assert BUILD in reasons[0]
        assert not [path for path in (tree, installed) if list(path.rglob("libregard_native.*"))]


def test_without_the_kernel_the_wheel_fits_every_system(tmp_path):
    wheel = distribution("wheel", tmp_path, "off")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as file:
        assert not [name for name in file.namelist() if "libregard_native" in name]


def test_the_source_distribution_holds_every_file_of_the_package_and_nothing_compiled(tmp_path):
    with tarfile.open(distribution("sdist", tmp_path)) as file:
        names = {name.split("/", 1)[1] for name in file.getnames()}
    listed = subprocess.run(
        ["git", "ls-files", "regard"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert {*listed.split(), "hatch_build.py", "pyproject.toml", "README.md", "LICENSE"} <= names
    assert not [name for name in names if "libregard_native" in name or name.startswith("tests/")]


def test_a_setting_of_the_build_that_does_not_exist_is_named(tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    room = {**os.environ, "REGARD_NATIVE_BUILD": "maybe"}
    done = subprocess.run(command, cwd=ROOT, env=room, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert (
        "REGARD_NATIVE_BUILD is 'maybe'; it is auto, required or off" in done.stdout + done.stderr
    )


@pytest.mark.slow
def test_an_environment_without_a_compiler_installs_the_source_distribution_and_computes_by_pytorch(
    fresh, tmp_path
):
    printed = fresh.install(distribution("sdist", tmp_path / "dist"))
    assert "the native backend is left out" in printed
    _, backend, state, *reasons = fresh.uses()
    assert (backend, state) == ("fused", "refused")
    assert BUILD in reasons[0]
    refused = fresh.run("python", "-m", "regard.backends.native.build", fails=True)
    assert (
        "no C++ compiler was found (g++, c++, clang++, the package ziglang, or the one named by $CXX)"
        in refused
    )


@pytest.mark.slow
def test_where_the_kernel_is_required_a_missing_compiler_is_an_error(fresh, tmp_path, monkeypatch):
    archive = distribution("sdist", tmp_path / "dist")
    tree = copied(tmp_path / "tree")
    monkeypatch.setenv("REGARD_NATIVE_BUILD", "required")
    for what in ([archive], [tree], ["--editable", tree]):
        assert "no C++ compiler was found" in fresh.install(*what, fails=True)
    assert "No module named 'regard'" in fresh.run("python", "-c", "import regard", fails=True)
