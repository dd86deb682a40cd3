"""Where the library is missing, stale or turned off, the backend refuses with the reason and PyTorch computes alone."""

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from regard.backends.native import build as building
from regard.backends.native import library
from regard.backends.native.build import BuildError, Target, build

# Each setting in a fork of a process that has imported torch alone: a record, or the reasons of refused probes.
FORKS = """
import json, os, sys, torch
script, probes = sys.argv[1:]
for setting, program in (("off", script), ("off", probes), ("maybe", script)):
    print("----", setting, flush=True)
    if (child := os.fork()) == 0:
        os.environ["REGARD_NATIVE"] = setting
        try:
            exec(program, {})
        except SystemExit as leaving:
            assert not leaving.code
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, setting
"""
SCRIPT = """
import json, torch, regard as rg
q = torch.randn(1, 2, 40, 8)
plan = rg.plan_attention(q, q, q, pattern="causal")
out = rg.attention(q, q, q, pattern="causal")
error = (out - rg.attention(q, q, q, pattern="causal", backend="reference")).abs().max().item()
try:
    rg.attention(q, q, q, backend="native")
except rg.UnsupportedError as refusal:
    named = str(refusal)
print(json.dumps({"backend": plan.backend, "others": json.loads(plan.to_json())["others"], "error": error,
                  "named": named, "text": str(plan)}))
"""
PROBES = "from regard.testing.health import check_backend; print(check_backend('native').refused)"


class Printed(NamedTuple):
    """What the forks printed: records of a call, and the refusals of the probes."""

    off: dict[str, Any]
    refused_when_off: str
    other_setting: dict[str, Any]


@pytest.fixture(scope="module")
def printed() -> Printed:
    command = [sys.executable, "-c", FORKS, SCRIPT, PROBES]
    # a fork has no other threads, and would wait for them
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    off, refused, other = re.split(r"^---- \w+\n", done.stdout, flags=re.MULTILINE)[1:]
    return Printed(json.loads(off), refused, json.loads(other))


def test_turned_off_it_refuses_with_the_reason_and_others_compute(printed):
    reason = "REGARD_NATIVE=off turns it off"
    assert printed.off["backend"] == "fused"
    assert printed.off["error"] < 1e-5
    assert printed.off["others"]["native"] == {"refused": reason}
    assert f"native refused: {reason}" in printed.off["text"]
    assert "REGARD_NATIVE=off" in printed.off["named"]
    assert reason in printed.refused_when_off


def test_another_setting_is_refused_with_the_two_that_exist(printed):
    assert "REGARD_NATIVE is 'maybe'; it is on or off" in printed.other_setting["named"]


def test_a_missing_library_says_how_to_build_it_and_a_file_that_is_none_says_so(
    tmp_path, monkeypatch
):
    monkeypatch.setenv(library.SETTING, "on")
    assert "run python -m regard.backends.native.build" in str(library.load(tmp_path / "none.so"))
    (tmp_path / "text.so").write_text("no library")
    assert "cannot be loaded" in str(library.load(tmp_path / "text.so"))


def test_without_a_compiler_the_build_says_so(monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(building.shutil, "which", lambda name: None)
    monkeypatch.setattr(building.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BuildError, match=r"no C\+\+ compiler was found"):
        build(tmp_path / "library.so")


def test_the_package_ziglang_is_used_where_no_other_compiler_is(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(building.importlib.util, "find_spec", lambda name: name)
    programs = {"clang++": "/bin/clang++"}
    monkeypatch.setattr(building.shutil, "which", programs.get)
    assert building.find_compiler() == ["/bin/clang++"]
    monkeypatch.setattr(building.shutil, "which", lambda name: None)
    compiler = building.find_compiler()
    assert compiler == [sys.executable, "-m", "ziglang", "c++"]
    assert building._linker(compiler, Target("linux", "x86_64"))[:4] == [
        sys.executable,
        "-m",
        "ziglang",
        "cc",
    ]


def test_for_another_machine_zig_comes_before_the_cross_compiler_of_gcc(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(building, "THIS_MACHINE", Target("linux", "x86_64"))
    arm, mac = Target("linux", "aarch64"), Target("darwin", "arm64")
    monkeypatch.setattr(building.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(building.shutil, "which", lambda name: f"/bin/{name}")
    assert building.find_compiler(arm)[-2:] == ["-target", "aarch64-linux-gnu.2.18"]
    assert building.find_compiler(mac)[-2:] == ["-target", "aarch64-macos.11.0"]
    monkeypatch.setattr(building.importlib.util, "find_spec", lambda name: None)
    assert building.find_compiler(arm) == ["/bin/aarch64-linux-gnu-g++"]
    with pytest.raises(BuildError, match=r"no C\+\+ compiler for darwin on arm64 was found"):
        building.find_compiler(mac)


def test_a_library_for_macos_has_no_path_of_its_builder_and_names_the_oldest_system():
    mac = Target("darwin", "arm64")
    assert "-Wl,-s" in building._linker(["zig", "c++"], mac)
    words = " ".join(building._linker(["clang++"], mac))
    assert "-install_name,@rpath/libregard_native.dylib" in words
    assert building._target_flags(["clang++"], mac) == ["-mmacosx-version-min=11.0"]
    assert building._target_flags(["clang++"], Target("linux", "x86_64")) == []


def test_a_library_of_another_system_is_compiled_again_when_its_oldest_version_changes(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(building, "THIS_MACHINE", Target("linux", "x86_64"))
    mac = Target("darwin", "arm64")
    linked = []

    def run_all(commands: list[list[str]]) -> None:
        if "-shared" in commands[0]:
            Path(commands[0][-1]).touch()
            linked.append(commands)

    monkeypatch.setattr(building, "_run_all", run_all)
    monkeypatch.setattr(building, "find_compiler", lambda target: ["zig", "c++"])
    for version, times in (("11.0", 1), ("11.0", 1), ("12.0", 2), ("12.0", 2)):
        monkeypatch.setattr(building, "OLDEST_MACOS", version)
        build(tmp_path / mac.library_name, target=mac)
        assert len(linked) == times


def test_threads_are_given_where_their_name_is_not_visible(monkeypatch):
    monkeypatch.setattr(library.ctypes, "CDLL", lambda name, mode: ctypes.pythonapi)
    monkeypatch.setattr(
        ctypes.pythonapi, "GOMP_parallel", ctypes.pythonapi.Py_IncRef, raising=False
    )
    expected = ctypes.cast(ctypes.pythonapi.Py_IncRef, ctypes.c_void_p).value
    assert library._address_of_threads() == expected


@pytest.mark.parametrize(
    ("compiler", "words"), [("/nowhere/g++", "could not be started"), ("false", "failed with code")]
)
def test_a_compiler_that_fails_is_named(monkeypatch, tmp_path, compiler, words):
    monkeypatch.setenv("CXX", compiler)
    with pytest.raises(BuildError, match=words):
        build(tmp_path / "library.so")
    assert not list(tmp_path.iterdir())


def test_sources_that_changed_give_another_digest(monkeypatch, tmp_path):
    before = building.digest()
    source = Path(shutil.copytree(building.SOURCE, tmp_path / "source"))
    monkeypatch.setattr(building, "SOURCE", source)
    assert building.digest() == before
    (source / "kernel.cpp").write_text("changed")
    assert building.digest() != before
