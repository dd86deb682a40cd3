"""A contest times whoever is right, and says of everyone else why not."""

from dataclasses import replace
from importlib.util import find_spec

import pytest

from regard.backends import BACKENDS
from regard.mechanisms import GatedDelta
from regard.patterns import Causal
from regard_lab.bench import peers
from regard_lab.bench import running as room
from regard_lab.bench.cases import REGARD
from regard_lab.bench.measuring import Pace
from regard_lab.bench.running import hold
from regard_lab.bench.work import (
    CAUSAL,
    CAUSAL_WINDOW,
    Case,
    Contender,
    Contest,
    Promise,
    Work,
    make_tensors,
)

WORK = Work(12, heads=2, head_dim=8, pattern=Causal())
FINE = replace(peers.SDPA, name="fine")
WRONG = Contender("wrong", lambda work, tensors: lambda: REGARD.prepare(work, tensors)() * 1.001)


@pytest.fixture(autouse=True)
def _quickly(monkeypatch):
    pace = Pace(rounds=2, shortest=0.0)
    for name in ("CPU_PACE", "WALL_PACE", "QUICK_CPU_PACE", "QUICK_WALL_PACE"):
        monkeypatch.setattr(room, name, pace)


def held(*others, quick=False, **options):
    contest = Contest("here", options.pop("work", WORK), (REGARD, *others), **options)
    return hold(
        Case("case", "A case", (contest,), (contest,)), contest, quick=quick, tell=lambda line: None
    )


def test_a_wrong_contender_is_reported_and_not_timed():
    record = held(
        WRONG,
        FINE,
        promises=(
            Promise("faster", "regard", "wrong", 2.0),
            Promise("faster", "regard", "fine", 0),
        ),
    )
    wrong, fine = (record["contenders"][name] for name in ("wrong", "fine"))
    assert wrong["status"] == "wrong"
    assert "output" in wrong["reason"]
    assert not {"cpu", "wall"} & wrong.keys()
    assert fine["status"] == "measured"
    assert len(fine["cpu"]["samples"]) == len(fine["wall"]["samples"]) == 2
    assert [promise["kept"] for promise in record["promises"]] == [None, True]


def test_the_ratio_is_that_of_the_medians():
    record = held(FINE, promises=(Promise("faster", "regard", "fine", 1.0),))
    ours, fine = (record["contenders"][name]["cpu"]["median"] for name in ("regard", "fine"))
    assert record["promises"][0]["found"] == fine / ours
    assert record["promises"][0]["kept"] is (fine >= ours)


def test_refusals_and_failures_are_kept_apart_with_their_reasons():
    def fails(work, tensors):
        raise ZeroDivisionError("by zero\nand more")

    record = held(
        replace(peers.SDPA, name="no"), Contender("fails", fails), work=replace(WORK, k_len=20)
    )
    refused = record["contenders"]["no"]
    assert refused["status"] == "refused"
    assert "square causal attention" in refused["reason"]
    assert record["contenders"]["fails"] == {
        "status": "failed",
        "reason": "ZeroDivisionError: by zero",
    }


def test_our_backend_is_said_and_what_could_not_be_checked():
    record = held(FINE, work=replace(WORK, dropout=0.1))
    assert record["contenders"]["regard"]["backend"] in BACKENDS
    assert record["contenders"]["regard"]["notes"] == []
    assert "without dropout" in record["contenders"]["fine"]["notes"][0]


RUNTIMES = (peers.ONNX_ATTENTION, peers.ONNX_MULTI_HEAD, peers.ONNX_GROUPED, peers.OPENVINO)


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda runtime: runtime.name)
def test_a_runtime_is_right_where_it_is_installed_and_named_where_it_is_not(runtime):
    work = Work(1, 37, heads=4, head_dim=8, batch=2, caches=2)
    record = held(runtime, work=work)["contenders"][runtime.name]
    absent = [package for package in runtime.package.split() if find_spec(package) is None]
    assert record["status"] == ("missing" if absent else "measured")
    assert not absent or record["reason"] == f"the package {absent[0]} is not installed"
    with pytest.raises(NotImplementedError, match="forward in float32, without options"):
        runtime.prepare(replace(work, backward=True), make_tensors(work))


SERVED = {
    "causal": Work(37, heads=4, kv_heads=2, head_dim=32, pattern=CAUSAL),
    "a window": Work(1031, heads=4, kv_heads=2, head_dim=32, pattern=CAUSAL_WINDOW),
    "one query": Work(1, 37, heads=4, kv_heads=2, head_dim=32),
    "latents": Work(1, 48, heads=4, kv_heads=1, head_dim=576, v_dim=512, latent=True),
    "gated delta": Work(67, heads=4, head_dim=128, pattern=CAUSAL, mechanism=GatedDelta()),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("kernel", [peers.VLLM, peers.SGLANG], ids=lambda kernel: kernel.name)
def test_a_kernel_of_a_server_is_right_or_refuses_or_is_named_as_missing(kernel, name, dtype):
    work = replace(SERVED[name], dtype=dtype)
    record = held(kernel, work=work)["contenders"][kernel.name]
    refused = {
        peers.VLLM: name == "gated delta",
        peers.SGLANG: dtype == "float32",
    }
    if find_spec("vllm") is None:
        assert record["status"] == "missing"
        assert record["reason"] == "the package vllm is not installed"
    else:
        assert record["status"] == ("refused" if refused[kernel] else "measured"), record


def test_rates_count_kept_pairs_or_the_bytes_of_one_query():
    causal = Work(37, heads=4, kv_heads=2, head_dim=16, v_dim=8, batch=3, pattern=CAUSAL)
    amount = held(work=causal)["amount"]
    assert amount == {"operations": 2 * (16 + 8) * 3 * 4 * 37 * 38 // 2, "dtype": "float32"}
    decoding = Work(1, 53, heads=4, kv_heads=2, head_dim=16, batch=3, cache_dtype="bfloat16")
    assert held(work=decoding)["amount"] == {"bytes": 2 * 3 * 2 * 53 * 32}


@pytest.mark.parametrize(("family", "checked"), [("", 1), ("Zen 5", 1), ("Zen 3", 0)])
def test_a_promise_is_checked_on_its_family_of_processors_alone(monkeypatch, family, checked):
    monkeypatch.setattr(room, "family", lambda: "Zen 5")
    promise = Promise("faster", REGARD.name, REGARD.name, 0.5, family)
    assert len(held(promises=(promise,))["promises"]) == checked


def test_caches_take_turns_and_what_computes_no_attention_is_timed_unchecked():
    drawn = []
    called = []

    def prepare(work, tensors):
        drawn.append(float(tensors.k.sum()))
        return lambda: called.append(tensors) or tensors.k

    nothing = Contender("nothing", prepare, checked=False)
    record = held(nothing, work=replace(WORK, caches=3))["contenders"]["nothing"]
    assert len(set(drawn)) == len(drawn) == 3
    assert len(called) > 3
    for number, tensors in enumerate(called):
        assert (tensors is called[0]) is (number % 3 == 0)
    assert (record["status"], record["errors"]) == ("measured", {})
    assert record["notes"] == ["it computes no attention"]
