"""The script that runs the suite as on other machines: every setting, a line each, failures told at the end."""

import os
import subprocess
import sys

import machines

CASE = """\
import os

def test_it():
    assert os.environ.get('ATEN_CPU_CAPABILITY') != 'default', 'plain fails here'
"""


def test_every_setting_has_a_line_and_one_that_fails_stops_no_other(tmp_path, monkeypatch, capfd):
    (tmp_path / "test_case.py").write_text(CASE)
    monkeypatch.setattr(machines, "ROOT", tmp_path)
    monkeypatch.setattr(machines, "BUSY_PROCESSES", 1)
    chosen = [
        "--only",
        "plain",
        "busy",
        "--out",
        str(tmp_path / "out"),
        str(tmp_path / "test_case.py"),
    ]
    assert machines.main(chosen) == 1
    lines = capfd.readouterr().out.splitlines()
    assert [line.split(" (")[0] for line in lines] == [
        f"plain: FAILED, see {tmp_path / 'out' / 'plain.txt'}",
        "busy: passed",
    ]
    assert "plain fails here" in (tmp_path / "out" / "plain.txt").read_text()


def test_a_setting_hears_nothing_of_what_is_set_outside(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx512")
    assert not {"OMP_NUM_THREADS", "ATEN_CPU_CAPABILITY"} & machines.environment("native").keys()
    assert machines.environment("threads-4")["OMP_NUM_THREADS"] == "4"
    assert machines.environment("avx2")["ATEN_CPU_CAPABILITY"] == "avx2"


def test_the_settings_reach_pytorch():
    program = (
        "import torch; print(torch.backends.cpu.get_cpu_capability(), torch.get_num_threads())"
    )
    environment = {**os.environ, **machines.SETTINGS["plain"], **machines.SETTINGS["threads-2"]}
    answer = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert answer.stdout.split() == ["DEFAULT", "2"]
