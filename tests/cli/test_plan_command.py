"""`regard plan` says what `plan_attention` decides, for calls far too large to be made."""

import json
import time

import pytest
import torch
from test_commands import regard

import regard as rg
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
