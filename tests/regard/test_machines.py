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
    out = tmp_path / "out"
    words = ["--only", "plain", "busy", "--out", str(out), str(tmp_path / "test_case.py")]
    assert machines.main(words) == 1
    lines = [line.split(" (")[0] for line in capfd.readouterr().out.splitlines()]
    assert lines == [f"plain: FAILED, see {out / 'plain.txt'}", "busy: passed"]
    assert "plain fails here" in (out / "plain.txt").read_text()


def test_a_setting_does_not_depend_on_variables_of_the_caller(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx512")
    assert not {"OMP_NUM_THREADS", "ATEN_CPU_CAPABILITY"} & machines.environment("native").keys()
    assert machines.environment("threads-4")["OMP_NUM_THREADS"] == "4"
    assert machines.environment("avx2")["ATEN_CPU_CAPABILITY"] == "avx2"


def test_the_settings_reach_pytorch():
    numbers = "torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()"
    command = [sys.executable, "-c", f"import torch; print({numbers})"]
    environment = {**os.environ, **machines.SETTINGS["plain"], **machines.SETTINGS["threads-2"]}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.stdout.split() == ["DEFAULT", "2"]
