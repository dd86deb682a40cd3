"""Cases that only reports need: they compute, and kernels of servers are right or say why not."""

from dataclasses import replace
from importlib.util import find_spec

import pytest

from benchmarks.libraries.__main__ import CASES, main
from benchmarks.libraries.servers import SGLANG, VLLM
from regard.mechanisms import GatedDelta
from regard_lab.bench import running
from regard_lab.bench.cases import REGARD
from regard_lab.bench.measuring import Pace
from regard_lab.bench.running import hold, relative_error
from regard_lab.bench.work import CAUSAL, CAUSAL_WINDOW, Case, Contest, Work


@pytest.fixture(autouse=True)
def _quickly(monkeypatch):
    pace = Pace(rounds=2, shortest=0.0)
    for name in ("CPU_PACE", "WALL_PACE", "QUICK_CPU_PACE", "QUICK_WALL_PACE"):
        monkeypatch.setattr(running, name, pace)


SERVED = {
    "causal": Work(37, heads=4, kv_heads=2, head_dim=32, pattern=CAUSAL),
    "a window": Work(1031, heads=4, kv_heads=2, head_dim=32, pattern=CAUSAL_WINDOW),
    "one query": Work(1, 37, heads=4, kv_heads=2, head_dim=32),
    "latents": Work(1, 48, heads=4, kv_heads=1, head_dim=576, v_dim=512, latent=True),
    "gated delta": Work(67, heads=4, head_dim=128, pattern=CAUSAL, mechanism=GatedDelta()),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("kernel", [VLLM, SGLANG], ids=lambda kernel: kernel.name)
def test_a_kernel_of_a_server_is_right_or_refuses_or_is_named_as_missing(kernel, name, dtype):
    work = replace(SERVED[name], dtype=dtype)
    contest = Contest("here", work, (REGARD, kernel))
    case = Case("case", "A case", (contest,), (contest,))
    record = hold(case, contest, quick=False, tell=print)["contenders"][kernel.name]
    refused = {
        VLLM: name == "gated delta",
        SGLANG: dtype == "float32",
    }
    if find_spec("vllm") is None:
        assert record["status"] == "missing"
        assert record["reason"] == "the package vllm is not installed"
    else:
        assert record["status"] == ("refused" if refused[kernel] else "measured"), record


def test_labels_tell_the_contests_of_a_case_apart():
    for case in CASES.values():
        labels = [contest.label for contest in case.contests]
        assert len(set(labels)) == len(labels)
        assert set(case.quick) <= set(case.contests)


@pytest.mark.parametrize("name", ["layer-step", "training", "translating"])
def test_what_needs_no_other_package_is_computed(name):
    (contest,) = CASES[name].quick
    outputs = [contender.prepare()() for contender in contest.sides if not contender.package]
    assert all(output.isfinite().all() for output in outputs)
    if name == "layer-step":
        assert relative_error(*outputs) < contest.largest_error


def test_the_command_measures_writes_and_resumes(tmp_path, capsys):
    main(["layer-step", "--quick", "--out", str(tmp_path)])
    assert "plain PyTorch" in capsys.readouterr().out
    report = (tmp_path / "bench.md").read_text()
    assert "`python -m benchmarks.libraries layer-step --quick`" in report
    main(["layer-step", "--quick", "--out", str(tmp_path), "--resume"])
    assert "layer-step: measured before" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["plain"])
    assert "no case is called 'plain'" in capsys.readouterr().err
