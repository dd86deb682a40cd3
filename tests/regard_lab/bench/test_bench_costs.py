"""Figures by which plans compare backends are measured by calls, and a plan says where they are assumed."""

import json

import pytest
import torch

import regard as rg
from regard.backends.native.library import load
from regard.core import costs
from regard.errors import ArgumentError
from regard_lab.bench import costs as measuring
from regard_lab.bench import processors
from regard_lab.bench.costs import costs_to_json, describe_costs, measure_costs
from regard_lab.bench.processors import of_linux, processor

NEOVERSE = "processor\t: 0\nBogoMIPS\t: 243.75\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"
built = pytest.mark.skipif(isinstance(load(), str), reason="the native library is not built here")


def test_a_figure_is_measured_beside_its_value_and_text_and_json_name_the_processor():
    said = []
    (figure,) = measure_costs(["STREAMED_START"], rounds=1, tell=said.append)
    assert (figure.name, figure.value) == ("STREAMED_START", costs.STREAMED_START)
    assert figure.measured != 0
    assert said == ["measuring STREAMED_START"]
    assert processor() in describe_costs([figure])
    assert "| STREAMED_START |" in describe_costs([figure])
    record = json.loads(costs_to_json([figure]))
    assert record["environment"]["processor"] == processor()
    assert record["figures"][0]["name"] == "STREAMED_START"


def test_a_figure_that_does_not_exist_is_named_with_those_that_do():
    with pytest.raises(ArgumentError, match="there is no figure KERNEL_PEACE; figures are"):
        measure_costs(["KERNEL_PEACE"])


def test_without_the_kernel_the_other_figures_are_measured(monkeypatch):
    monkeypatch.setattr(measuring, "load", lambda: "it is not built")
    assert measuring.of_kernel() == []
    assert "no kernel" in describe_costs([])


def test_processors_are_named_as_each_system_tells_them(monkeypatch):
    assert of_linux("model name\t: AMD EPYC 9R14 96-Core\nmodel name\t: other") == (
        "AMD EPYC 9R14 96-Core"
    )
    assert of_linux(NEOVERSE) == "Arm Neoverse N1"
    assert of_linux("CPU implementer\t: 0x48\nCPU part\t: 0xd01") == "Arm processor 0x48 0xd01"
    assert of_linux("flags\t: none") == ""
    monkeypatch.setattr(processors.sys, "platform", "darwin")
    monkeypatch.setattr(processors, "_of_macos", lambda: "Apple M2")
    assert processor().startswith("Apple M2, ")


@built
def test_a_plan_says_that_the_kernel_was_not_measured_on_a_processor(monkeypatch, fresh_plans):
    q = torch.randn(1, 2, 41, 16)
    sentence = "not measured: how fast the kernel is on a processor with {} is assumed"
    known = load().instructions
    assert sentence.format(known) not in str(rg.plan_attention(q, q, q, pattern="causal"))

    monkeypatch.setattr(costs, "ASSUMED", (known,))
    fresh_plans()
    printed = str(rg.plan_attention(q, q, q, pattern="causal"))
    assert sentence.format(known) in printed
    assert "`regard bench --costs` measures it" in printed
