"""What the run on emulated Arm compares and when it is skipped; nothing is emulated here."""

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from shipping import emulated
from shipping.emulated import Emulated, MissingError
from tests.arm import calls, comparing
from tests.long.running import Found, LongRun, go_on
from tests.long.runs import RUNS
from tests.regard.fuzz import judging
from tests.regard.fuzz.tensors import DrawnNumbers, SoftmaxCall


def record(**changed: Any) -> dict[str, Any]:
    """What a call gave."""
    return {
        "seed": 7,
        "outcome": "right",
        "reason": "",
        "share": 0.5,
        "bits": {"output": "a", "d bias": "b"},
        "of kernel": ["output"],
        "threads agree": True,
        "learns": True,
        "planted": "nan",
        **changed,
    }


def compared(arm: dict[str, Any], ours: dict[str, Any]) -> Found:
    found = Found()
    comparing.compare(arm, ours, found)
    return found


def test_equal_calls_are_counted():
    found = compared(record(), record())
    assert not found.wrong
    assert found.counts["right"] == found.counts["with gradients"] == 1
    assert found.counts["with the bits of x86-64"] == found.counts["results of the kernel"] == 1
    assert found.counts["such results with the bits of x86-64"] == 1
    assert found.largest == {"error in bounds": 0.5}


DIFFERENT = {
    "other bits of the kernel": ({"bits": {"output": "c", "d bias": "b"}}, "output has other bits"),
    "another outcome": ({"outcome": "refused"}, "is refused on Arm and right here"),
    "threads": ({"threads agree": False}, "3 threads give other bits than 1"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_difference_is_wrong(name):
    changed, sentence = DIFFERENT[name]
    (wrong,) = compared(record(**changed), record()).wrong
    assert sentence in wrong


def test_last_bits_of_what_pytorch_computes_may_differ_and_a_wrong_number_may_not():
    assert not compared(record(bits={"output": "a", "d bias": "c"}), record()).wrong
    off = record(outcome="off", reason="output[3] is 1 instead of 2")
    assert compared(off, record(outcome="off")).wrong == ["seed 7: output[3] is 1 instead of 2"]


def test_tensors_end_before_a_page_that_cannot_be_read():
    x = torch.arange(35.0).view(5, 7)[:, :3]
    copy = calls.guarded(x)
    assert torch.equal(copy, x)
    assert copy.stride() == x.stride()
    end = copy.data_ptr() + 4 * (4 * 7 + 3)
    assert end % calls.mmap.PAGESIZE == 0
    assert calls.guarded(torch.empty(0, 3)).shape == (0, 3)


def test_a_call_is_recorded_with_1_and_with_3_threads(monkeypatch):
    recorder = calls.BitRecorder()
    given = []

    def threads() -> int:
        given.append(recorder.threads)
        return recorder.threads

    monkeypatch.setattr(torch, "get_num_threads", threads)
    monkeypatch.setattr(judging, "_compute", recorder.wrap(judging._compute))
    monkeypatch.setattr(DrawnNumbers, "numbers", calls.exact_numbers)
    monkeypatch.setattr(SoftmaxCall, "tensor", calls.guarded_tensor(SoftmaxCall.tensor))
    found = calls.verdict_of(10, recorder)
    assert found["outcome"] == "right"
    assert found["threads agree"]
    assert found["bits"]["output"]
    assert recorder.bits.keys() == set(given) == {1, calls.THREADS}


def test_where_emulation_is_missing_the_run_is_skipped_by_a_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(emulated.shutil, "which", lambda name: None)
    with pytest.raises(MissingError, match="qemu-aarch64-static is not installed"):
        Emulated(tmp_path).run("-c", "pass")
    run: LongRun = replace(RUNS["arm"], place="nowhere.work")
    results = tmp_path / "results.json"
    assert go_on(run, 3, 1.0, path=results) == 0
    assert "arm: skipped, since qemu-aarch64-static is not installed" in capsys.readouterr().out
    assert not results.exists()


def test_a_download_that_was_interrupted_begins_again(tmp_path, monkeypatch):
    arm = Emulated(tmp_path)
    commands = []

    def interrupted(command: list[Any], **options: Any) -> None:
        commands.append(command[0])
        if "download" in command:
            Path(options["cwd"], "python.deb").touch()
        if command[0] == "dpkg":
            python = Path(command[-1], "usr", "bin", "python3.11")
            python.parent.mkdir(parents=True)
            python.touch()
            if commands.count("dpkg") == 1:
                raise KeyboardInterrupt

    monkeypatch.setattr(emulated.subprocess, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        arm.fetch()
    assert not arm.is_fetched
    arm.fetch()
    assert commands.count("dpkg") == 2
    assert arm.python.is_file()
    assert arm.is_fetched


def test_a_folder_without_python_says_what_brings_it_and_how_large_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(emulated.shutil, "which", lambda name: f"/bin/{Path(name).name}")
    sentence = Emulated(tmp_path).missing
    assert sentence is not None
    assert f"--fetch` brings it ({sum(emulated.SIZES.values())} MB)" in sentence


def test_the_command_says_in_a_sentence_what_is_missing_or_what_failed(
    tmp_path, monkeypatch, capsys
):
    def refused(command: list[Any], **options: Any) -> None:
        raise subprocess.CalledProcessError(100, command)

    monkeypatch.setattr(emulated.shutil, "which", lambda name: f"/bin/{Path(name).name}")
    emulated.main(["--folder", str(tmp_path)])
    assert "no Python for Arm in" in capsys.readouterr().out
    monkeypatch.setattr(emulated.subprocess, "run", refused)
    with pytest.raises(SystemExit, match=r"^apt-get .* failed with code 100; run this again"):
        emulated.main(["--folder", str(tmp_path), "--fetch"])


def test_emulated_modules_are_compiled_once(tmp_path, monkeypatch):
    environments = []
    arm = Emulated(tmp_path)
    arm.system.mkdir()
    arm.packages.mkdir()
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(emulated.shutil, "which", lambda name: f"/bin/{Path(name).name}")
    monkeypatch.setattr(
        emulated.subprocess, "run", lambda command, **options: environments.append(options["env"])
    )
    arm.run("-c", "pass")
    (environment,) = environments
    assert "PYTHONDONTWRITEBYTECODE" not in environment
    assert Path(environment["PYTHONPYCACHEPREFIX"]).is_relative_to(tmp_path)
