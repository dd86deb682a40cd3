"""`regard plan` says what `plan_attention` decides, for calls far too large to be made."""

import json
import time

import pytest
import torch
from test_commands import regard

import regard as rg
from regard import distributed
from regard.backends.flex import backend as flex_backend


@pytest.mark.parametrize(
    ("arguments", "shapes", "options"),
    [
        (["--q-len", "7"], ((1, 8, 7, 64), (1, 8, 7, 64), (1, 8, 7, 64)), {}),
        (
            ["--q-len", "7", "--k-len", "11", "--heads", "6", "--kv-heads", "3", "--head-dim", "5", "--v-dim", "13",
             "--batch", "2", "--pattern", "causal & causal_window(4)", "--want", "entropy", "--want", "top_keys(3)",
             "--want", "weights_of(rows=[0, 5], heads=[2])"],
            ((2, 6, 7, 5), (2, 3, 11, 5), (2, 3, 11, 13)),
            {"pattern": "causal & causal_window(4)",
             "want": ["entropy", rg.top_keys(3), rg.weights_of(rows=[0, 5], heads=[2])]},
        ),
        (
            ["--q-len", "9", "--softcap", "30", "--dropout", "0.25", "--dtype", "bfloat16", "--backend", "reference"],
            ((1, 8, 9, 64),) * 3,
            {"softcap": 30.0, "dropout": 0.25, "dtype": torch.bfloat16, "backend": "reference"},
        ),
        (["--q-len", "9", "--grad"], ((1, 8, 9, 64),) * 3, {"requires_grad": True}),
    ],
)  # fmt: skip
def test_json_is_that_of_plan_attention(arguments, shapes, options):
    made = {name: options.pop(name) for name in ("dtype", "requires_grad") if name in options}
    q, k, v = (torch.zeros(shape, **made) for shape in shapes)
    answer = regard("plan", *arguments, "--json")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.decode().strip() == rg.plan_attention(q, k, v, **options).to_json()


def test_a_million_queries_are_planned_without_being_made():
    began = time.process_time()
    answer = regard("plan", "--q-len", "1000000", "--pattern", "causal & causal_window(512)", "--heads", "4")
    assert answer.returncode == 0, answer.stderr
    assert "1000000 queries by 1000000 keys" in answer.stdout.decode()
    assert time.process_time() - began < 30  # a guard: to look at every pair would take hours


def test_a_plan_for_a_device_that_is_not_here():
    record = json.loads(regard("plan", "--q-len", "64", "--device", "cuda", "--json").stdout)
    assert "on cuda" in record["problem"]


def test_a_plan_for_a_device_does_not_depend_on_what_is_installed_here(monkeypatch):
    monkeypatch.setattr(flex_backend, "find_spec", lambda name: None)
    arguments = ("--q-len", "8192", "--pattern", "causal & (causal_window(512) | strided(64))", "--device", "cuda")
    record = json.loads(regard("plan", *arguments, "--json").stdout)
    flex = {record["backend"]: record["cost"], **record["others"]}["flex"]
    assert "refused" not in flex
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert b"planned for a machine with cuda" in regard("plan", *arguments).stderr


def test_a_mechanism_is_planned_without_its_learned_tensors():
    for mechanism, backend in {"performer(64)": "linear", "linformer(64, 8)": "linformer"}.items():
        answer = regard("plan", "--q-len", "64", "--mechanism", mechanism, "--json")
        assert answer.returncode == 0, answer.stderr
        assert json.loads(answer.stdout)["backend"] == backend


def test_the_table_of_a_plan_marks_the_chosen_backend():
    answer = regard("plan", "--q-len", "64", "--pattern", "causal")
    chosen = json.loads(regard("plan", "--q-len", "64", "--pattern", "causal", "--json").stdout)["backend"]
    marked = [line.split()[0] for line in answer.stdout.decode().splitlines()[1:] if line.split()[1] == "chosen:"]
    assert marked == [chosen]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--pattern", "caual"], 2, "there is no pattern 'caual'; did you mean 'causal'?"),
        (["--dtype", "int8"], 2, "dtype 'int8' is not supported; there are float16"),
        (["--device", "tpu"], 2, "device 'tpu' is not supported; there are cpu, cuda"),
        (["--want", "nonsense"], 2, "want='nonsense' is no statistic"),
        (["--want", "weights_of(rows=[a])"], 2, "rows and heads are whole numbers"),
        (["--mechanism", "performr"], 2, "there is no mechanism 'performr'"),
        (["--dropout", "2"], 2, "dropout is 2;"),
        (["--backend", "magic"], 2, "backend 'magic' does not exist"),
        (["--heads", "8", "--kv-heads", "3"], 2, "heads must be a multiple of kv-heads"),
        (["--softcap", "30", "--backend", "fused"], 2, "have no softcap"),
    ],
)
def test_a_mistake_is_one_line(arguments, code, words):
    answer = regard("plan", "--q-len", "10", *arguments)
    assert answer.returncode == code
    assert not answer.stdout
    assert answer.stderr.count(b"\n") == 1
    assert words in answer.stderr.decode()


def test_the_queries_must_be_counted():
    assert regard("plan").returncode == 2


@pytest.mark.parametrize(
    ("arguments", "lengths", "options"),
    [
        (["--ranks", "3"], (334, 333, 333), {}),
        (
            ["--ranks", "4", "--pattern", "causal & causal_window(9)", "--layout", "zigzag", "--form", "ring",
             "--heads", "6", "--kv-heads", "3", "--head-dim", "5", "--v-dim", "13", "--batch", "2",
             "--dtype", "bfloat16", "--flops", "1e9", "--bandwidth", "1e6", "--latency", "0.002"],
            (250,) * 4,
            {"pattern": "causal & causal_window(9)", "layout": "zigzag", "form": "ring", "heads": 6, "kv_heads": 3,
             "head_dim": 5, "v_dim": 13, "batch": 2, "dtype": torch.bfloat16,
             "machine": distributed.Machine(flops=1e9, bandwidth=1e6, latency=0.002)},
        ),
    ],
)  # fmt: skip
def test_with_ranks_the_json_is_that_of_the_forecast(arguments, lengths, options):
    answer = regard("plan", "--q-len", "1000", *arguments, "--json")
    assert answer.returncode == 0, answer.stderr
    record = json.loads(answer.stdout)
    made = distributed.forecast(lengths, **{"heads": 8, "head_dim": 64, "dtype": torch.float32} | options)
    for name in ("sent", "received", "memory", "compute", "waiting", "seconds"):
        assert tuple(record[name]) == getattr(made, name), name
    assert (record["form"], record["efficiency"]) == (made.form, made.efficiency)
    assert (record["ranks"], tuple(record["positions"])) == (len(lengths), lengths)
    assert record["assumed"] == vars(options.get("machine", distributed.Machine()))


def test_the_text_of_a_forecast_has_the_least_and_the_most_and_what_is_assumed():
    answer = regard("plan", "--q-len", "4096", "--ranks", "4", "--pattern", "causal_window(128)", "--kv-heads", "2")
    lines = [" ".join(line.split()) for line in answer.stdout.decode().splitlines()]
    assert lines[0].startswith("forecast of a forward pass of causal_window(128) over 4 processes, contiguous, gather")
    assert "positions 1,024 1,024" in lines
    assert "bytes received 0 130,048" in lines  # 127 keys of 2 heads, 2 x 64 numbers of 4 bytes; the first needs none
    assert "assumed: 4.8e+14 operations and 5e+10 bytes per second" in lines[-1]


def test_a_forecast_names_the_better_layout_and_no_rounding_as_a_time():
    causal = ("plan", "--q-len", "1000000", "--ranks", "8", "--pattern", "causal", "--overhead", "0")
    lines = [" ".join(line.split()) for line in regard(*causal).stdout.decode().splitlines()]
    assert "53% of the time of all processes is computing; with --layout zigzag 100%" in lines
    assert "ms waiting 0 0" in lines
    even = regard("plan", "--q-len", "4096", "--ranks", "4", "--pattern", "full").stdout.decode()
    assert "zigzag" not in even


def test_the_help_names_the_constants_of_the_machine():
    said = " ".join(regard("plan", "--help").stdout.decode().split())
    for name in ("flops", "bandwidth", "latency", "overhead"):
        of_option = said.partition(f"--{name} ")[2]
        assert float(of_option.partition("[default: ")[2].partition("]")[0]) == getattr(distributed.Machine(), name)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--ranks", "0"], "--ranks is 0; it has to be at least 1"),
        (["--ranks", "5000"], "at most 4,096 are forecast"),
        (["--layout", "zigzag"], "--layout belongs to --ranks N"),
        (["--form", "ring", "--flops", "1e12"], "--form and --flops belong to --ranks N"),
        (["--ranks", "2", "--layout", "spiral"], "layout 'spiral' does not exist; there are contiguous, zigzag"),
        (["--ranks", "2", "--form", "state"], "is not forecast; give ring, gather or auto"),
        (["--ranks", "2", "--grad"], "--grad with --ranks: the forecast is of a forward pass"),
        (["--ranks", "2", "--k-len", "11", "--dropout", "0.1"], "--dropout and --k-len with --ranks"),
        (["--ranks", "2", "--softcap", "3", "--want", "entropy"], "--softcap and --want with --ranks"),
        (["--ranks", "2", "--device", "cuda", "--backend", "fused"], "--device and --backend with --ranks"),
        (["--ranks", "2", "--mechanism", "lsh(chunk=4)"], "has no form over several processes"),
        (["--ranks", "2", "--mechanism", "linformer(10, 4)"], "has no form over several processes"),
        (["--ranks", "2", "--mechanism", "performer(64)"], "but its cost is not forecast"),
        (["--ranks", "2", "--mechanism", "softmax(general(64, 64))"], "but its cost is not forecast"),
        (["--ranks", "2", "--form", "tree"], "--form 'tree' does not exist; there are ring, gather, auto"),
        (["--ranks", "2", "--flops", "0"], "flops is 0; it is a number of 1 or more"),
    ],
)
def test_a_mistake_with_ranks_is_one_line(arguments, words):
    answer = regard("plan", "--q-len", "10", *arguments)
    assert answer.returncode == 2
    assert not answer.stdout
    assert answer.stderr.count(b"\n") == 1
    assert words in answer.stderr.decode()
