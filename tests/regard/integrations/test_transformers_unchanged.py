"""`attach`, `detach`, `explain` and the rest leave a model as it was, whatever its forward passes change.

With `-m slow` every architecture that transformers can build small, with all options.
"""

import copy
import random
from collections import deque
from typing import ClassVar

import pytest

pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'regard[transformers]'"
)

import hugging_face_sweep as sweep
import hugging_face_unchanged as unchanged
import torch
import transformers as tf
from each_value import slow_except
from hugging_face_families import BY_NAME, QUICK, REFUSED, SIZES
from torch import nn
from transformers_versions import CACHE

import regard as rg
from regard.integrations.snapshot import Snapshot
from regard.integrations.transformers import (
    attach,
    attaching,
    change_attention,
    comparing,
    detach,
    explain,
)
from regard.integrations.transformers.tiny_inputs import tiny_inputs

IDS = torch.randint(3, 98, (2, 9), generator=torch.Generator().manual_seed(2))
HIDDEN = {"hidden_states": True, "attentions": False, "use_cache": True}
FAMILIES = [family.name for family in BY_NAME.values() if family.status != REFUSED]


@pytest.mark.parametrize("name", slow_except(FAMILIES, fast=QUICK))
def test_attach_and_detach_leave_a_family_as_it_was_with_its_hidden_states(name):
    row = unchanged.row_of_family(BY_NAME[name], HIDDEN)
    assert row["faults"] == []
    assert row["status"] == sweep.EQUAL
    assert row["outputs"] >= 4


@pytest.mark.each_value
@pytest.mark.parametrize("options", unchanged.OPTIONS, ids=str)
@pytest.mark.parametrize("name", ["Llama", "BERT", "BART", "GPT-2"])
def test_attach_and_detach_leave_a_model_as_it_was_with_all_options(name, options):
    assert unchanged.row_of_family(BY_NAME[name], options)["faults"] == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(16))
@pytest.mark.parametrize("options", unchanged.OPTIONS, ids=str)
def test_attach_and_detach_leave_every_architecture_as_it_was(options, part):
    kinds = sweep.architectures()[part::16]
    rows = {kind: unchanged.row_of_kind(kind, options)["faults"] for kind in kinds}
    assert {kind: faults for kind, faults in rows.items() if faults} == {}


def test_hidden_states_are_not_counted_twice():
    config = tf.BertConfig(**SIZES, output_hidden_states=True)
    model = tf.BertModel(config).eval()
    assert len(attach(model)(IDS).hidden_states) == 4
    assert len(detach(model)(IDS).hidden_states) == 4


class Planted(tf.BertModel):
    """A model whose forward changes what it holds; `plant` says how."""

    counted = 0
    shared: ClassVar = []  # of all objects of the class

    def __init__(self, config):
        super().__init__(config)
        self.notes = []
        self.table = {"calls": 0, "inner": {}}
        self.kinds = {"first"}
        self.recent = deque(["first"], maxlen=3)
        self.plain = torch.zeros(5)
        self.generator = torch.Generator().manual_seed(3)
        self.register_buffer("seen", torch.zeros(7))
        self.register_buffer("never", torch.full((3,), torch.nan))
        self.installed = False

    def forward(self, input_ids=None, attention_mask=None):
        self.plant()
        return super().forward(input_ids=input_ids, attention_mask=attention_mask)

    def plant(self):
        raise NotImplementedError


class InstallsAHook(Planted):
    """Once, behind a flag, as transformers does; its hook adds to the output."""

    def plant(self):
        if self.installed:
            return
        self.installed = True
        layer = self.encoder.layer[1].output
        layer.register_forward_hook(lambda module, args, output: output + 0.5)


class InstallsEveryHook(Planted):
    def plant(self):
        layer = self.encoder.layer[1]
        layer.register_forward_pre_hook(lambda module, args: None)
        layer.register_forward_pre_hook(lambda module, args, keywords: None, with_kwargs=True)
        layer.register_forward_hook(lambda module, args, output: None, always_call=True)
        layer.register_forward_hook(
            lambda module, args, keywords, output: None, with_kwargs=True, prepend=True
        )
        layer.register_full_backward_hook(lambda module, inputs, outputs: None)
        layer.register_full_backward_pre_hook(lambda module, outputs: None)
        layer.register_state_dict_pre_hook(lambda *args: None)
        layer.register_state_dict_post_hook(lambda *args: None)
        layer.register_load_state_dict_pre_hook(lambda *args: None)
        layer.register_load_state_dict_post_hook(lambda *args: None)


class ChangesContainers(Planted):
    def plant(self):
        self.notes.append(len(self.notes))
        self.table["calls"] += 1
        self.table["inner"][f"call {self.table['calls']}"] = [1]
        self.kinds.add(len(self.kinds))
        self.recent.append(len(self.notes))


class ChangesTensors(Planted):
    def plant(self):
        self.seen[2] += 1
        self.plain.add_(2)
        self.never.data = torch.ones(4)
        self.embeddings.position_ids.add_(0)
        self.encoder.layer[0].output.dense.weight.requires_grad_(False)


class ReplacesTensors(Planted):
    def plant(self):
        self.seen = self.seen + 1
        self.plain = self.plain + 2
        self.register_buffer(f"new_{len(self._buffers)}", torch.ones(2))
        self.encoder.layer[2].extra = nn.Linear(3, 5)


class WritesItsConfig(Planted):
    def plant(self):
        self.config.hidden_act = "relu"
        self.config.id2label[7] = "seven"
        self.config.new_setting = [1]


class CountsOnItsClass(Planted):
    def plant(self):
        type(self).counted += 1
        self.shared.append(1)
        Planted.latest = self.counted


class ChangesTheProgram(Planted):
    def plant(self):
        torch.rand(3)
        random.random()
        torch.rand(3, generator=self.generator)
        torch.set_grad_enabled(True)
        self.pooler.train()


class ReplacesItsClass(Planted):
    def plant(self):
        self.encoder.layer[1].__class__ = type("Other", (type(self.encoder.layer[1]),), {})


PLANTED = [
    InstallsAHook,
    InstallsEveryHook,
    ChangesContainers,
    ChangesTensors,
    ReplacesTensors,
    WritesItsConfig,
    CountsOnItsClass,
    ChangesTheProgram,
    ReplacesItsClass,
]


def planted(kind):
    torch.manual_seed(1)
    return kind(tf.BertConfig(**SIZES, pad_token_id=0)).eval()


def everything(model):
    """What a model and the program hold that a planted forward changes."""
    return {
        "classes": [dict(vars(kind)) for kind in type(model).__mro__[:2]],
        "shared": [*Planted.shared],
        "torch": torch.get_rng_state().tolist(),
        "python": random.getstate(),
        "generator": model.generator.get_state().tolist(),
        "grad": torch.is_grad_enabled(),
    }


@pytest.mark.parametrize("kind", PLANTED, ids=lambda kind: kind.__name__)
def test_what_a_forward_changes_is_taken_back_by_attach(kind):
    model = planted(kind)
    before = unchanged.Description(model)
    around = everything(model)
    attach(model)
    assert everything(model) == around
    detach(model)
    assert before.changes_to(unchanged.Description(model)) == []
    assert everything(model) == around


@pytest.mark.parametrize("kind", PLANTED, ids=lambda kind: kind.__name__)
def test_what_a_forward_changes_is_taken_back_by_explain_and_by_attached(kind):
    model = attach(planted(kind), check=False)
    before = unchanged.Description(model)
    around = everything(model)
    assert len(explain(model, IDS).calls) == 3
    with attaching.attached(model):
        model(IDS)
    assert before.changes_to(unchanged.Description(model)) == []
    assert everything(model) == around
    model = planted(kind)
    before = unchanged.Description(model)
    with attaching.attached(model), torch.no_grad():
        model(IDS)
    assert before.changes_to(unchanged.Description(model)) == []


class RaisesTheSecondTime(Planted):
    def plant(self):
        self.notes.append(1)
        self.table["calls"] += 1
        self.seen.add_(1)
        if len(self.notes) > 1:
            raise ValueError("a second forward")


class RaisesBesideRegard(Planted):
    """Where its own attention does not compute it; the list remembers nothing, since it is given back."""

    def plant(self):
        self.notes.append(1)
        self.seen.add_(1)
        self.encoder.layer[0].register_forward_hook(lambda *args: None)
        if self.config._attn_implementation == "regard":
            raise ValueError("not this attention")


def test_a_model_whose_second_forward_would_raise_runs_each_time_as_the_first_time():
    model = planted(RaisesTheSecondTime)
    before = unchanged.Description(model)
    attach(model)
    with torch.no_grad():
        model(IDS)
        with pytest.raises(ValueError, match="a second forward"):
            model(IDS)
    model.notes.clear()
    model.table["calls"] = 0
    model.seen.zero_()
    assert before.changes_to(unchanged.Description(detach(model))) == []


def test_a_model_that_raises_beside_regard_is_refused_and_given_back():
    model = planted(RaisesBesideRegard)
    before = unchanged.Description(model)
    with pytest.raises(rg.UnsupportedError, match="raises ValueError with regard"):
        attach(model)
    assert before.changes_to(unchanged.Description(model)) == []


class WritesItsWeights(Planted):
    """Which no snapshot copies."""

    def plant(self):
        self.encoder.layer[1].output.dense.weight.data[0].add_(0.3)


OUTSIDE = []


class KeepsOutsideOfItself(Planted):
    """In a variable of its program, where no snapshot looks."""

    def plant(self):
        OUTSIDE.append(1)
        self.encoder.layer[1].output.dense.bias.data[0] = len(OUTSIDE)


@pytest.mark.parametrize("kind", [WritesItsWeights, KeepsOutsideOfItself])
def test_a_model_that_cannot_be_given_back_is_refused_with_a_sentence(kind):
    model = planted(kind)
    with pytest.raises(
        rg.UnsupportedError, match=r"changed by its own forward passes.*load it anew"
    ):
        attach(model)
    assert model.config._attn_implementation == "sdpa"
    assert attach(model, check=False) is model


def test_a_snapshot_that_forgets_hooks_is_found_by_the_third_run(monkeypatch):
    """As before: the flag went back and the hooks stayed."""
    record = Snapshot._record_dict

    def without_hooks(self, value):
        return [] if "OrderedDict" in type(value).__name__ else record(self, value)

    monkeypatch.setattr(Snapshot, "_record_dict", without_hooks)
    with pytest.raises(rg.UnsupportedError, match="changed by its own forward passes"):
        attach(planted(InstallsAHook))
    with pytest.raises(rg.UnsupportedError, match=r"changed by its own.*hidden_states"):
        attach(tf.BertModel(tf.BertConfig(**SIZES, output_hidden_states=True)).eval())


def test_a_hook_of_the_users_own_collects_nothing_in_the_comparison():
    model = BY_NAME["BERT"].model()
    collected = []
    counts = {"calls": 0}

    def collect(module, args, output):
        collected.append(output)
        counts["calls"] += 1

    model.encoder.layer[0].register_forward_hook(collect)
    attach(model)
    assert (collected, counts) == ([], {"calls": 0})
    explain(model, IDS)
    assert (collected, counts) == ([], {"calls": 0})
    model(IDS)
    assert (len(collected), counts) == (1, {"calls": 1})


def test_explain_leaves_a_cache_among_its_inputs_as_it_was():
    model = attach(BY_NAME["Llama"].model())
    for cache in (
        tf.DynamicCache(config=model.config),
        tf.StaticCache(config=model.config, max_cache_len=32),
    ):
        with torch.no_grad():
            model(IDS, **{CACHE: cache})
        keys = cache.layers[1].keys.clone()
        explained = explain(model, {"input_ids": IDS[:, :1], CACHE: cache})
        assert explained.calls[0].q_len == 1
        assert cache.get_seq_length() == 9
        assert torch.equal(cache.layers[1].keys, keys)


@pytest.mark.parametrize("name", ["BERT", "RoBERTa", "GPT-2"])
def test_a_change_of_attention_that_is_undone_leaves_the_model_as_it_was(name):
    model = BY_NAME[name].model()
    before = unchanged.Description(model)
    with change_attention(model, pattern="sliding_window(3)", length=200):
        assert model.config._attn_implementation == "regard"
    assert before.changes_to(unchanged.Description(model)) == []


def test_a_change_of_attention_that_fails_leaves_the_model_as_it_was(monkeypatch):
    model = BY_NAME["BERT"].model()
    before = unchanged.Description(model)

    def fails(*_):
        raise MemoryError("no room for the table")

    monkeypatch.setattr(
        "regard.integrations.transformers.position_tables.PositionTables.lengthen", fails
    )
    with pytest.raises(MemoryError):
        change_attention(model, pattern="sliding_window(3)", length=200)
    assert before.changes_to(unchanged.Description(model)) == []


def test_attaching_again_after_another_implementation_leaves_no_hook_behind():
    model = BY_NAME["BERT"].model()
    before = unchanged.Description(model)
    attach(model)
    model.set_attn_implementation("sdpa")
    attach(model)
    assert before.changes_to(unchanged.Description(detach(model))) == []


def test_a_copy_of_an_attached_model_gets_its_own_attention_back():
    model = BY_NAME["Gemma 2"].model()
    assert model.config._attn_implementation == "eager"
    copied = copy.deepcopy(attach(model))
    assert detach(copied).config._attn_implementation == "eager"
    assert model.config._attn_implementation == "regard"


def test_what_equals_sdpa_and_not_eager_attention_is_taken_with_a_word():
    """BLT's eager attention and its sdpa differ in rows that may look at no key."""
    model = attach(sweep.small.built("blt"))
    (sentence,) = model.differing.values()
    assert [*model.differing] == ["BltForCausalLM"]
    assert "equal to its own sdpa attention, which is not its eager attention" in sentence
    explained = explain(model, {"input_ids": IDS, "use_cache": False})
    assert f"BltForCausalLM: {sentence}" in repr(explained)
    assert "differing" not in detach(model).__dict__
    assert attach(BY_NAME["BERT"].model()).differing == {}


def test_weights_that_a_model_returns_unasked_are_named_and_its_other_outputs_are_equal():
    """BridgeTower's eager attention hands its weights on to the output; there is None in their place with regard."""
    options = {"hidden_states": True, "attentions": False, "use_cache": True}
    row = unchanged.row_of_kind("bridgetower", options)
    assert row["faults"] == []
    assert row["status"] == sweep.EQUAL
    assert row["outputs"] == 13

    model = attach(sweep.small.built("bridgetower"))
    (sentence,) = model.differing.values()
    assert "returns attentions without being asked" in sentence
    pairs = [inputs for inputs in tiny_inputs(model) if {"input_ids", "pixel_values"} <= {*inputs}]
    assert f"{type(model).__name__}: {sentence}" in repr(explain(model, pairs[0]))


def test_what_equals_neither_is_refused(monkeypatch):
    monkeypatch.setattr(comparing._Comparison, "_outputs_of_sdpa", lambda self: None)
    model = sweep.small.built("blt")
    before = unchanged.Description(model)
    with pytest.raises(rg.UnsupportedError, match="differs from its own eager attention"):
        attach(model)
    assert before.changes_to(unchanged.Description(model)) == []


def whisper():
    model = BY_NAME["Whisper"].model()
    model.generation_config.alignment_heads = [[0, 1], [1, 2]]
    model.generation_config.no_timestamps_token_id = 90
    model.generation_config.return_timestamps = True
    model.generation_config.is_multilingual = False
    return model


@pytest.mark.filterwarnings("ignore")
def test_the_token_timestamps_of_whisper_are_refused_and_the_model_stays_attached():
    sounds = torch.randn(2, 8, 60, generator=torch.Generator().manual_seed(3))
    options = {
        "input_features": sounds,
        "attention_mask": torch.ones(2, 60, dtype=torch.long),
        "max_new_tokens": 5,
        "do_sample": False,
    }
    model = attach(whisper())
    with pytest.raises(
        rg.UnsupportedError, match=r"return_token_timestamps=True.*detach\(model\) before this"
    ):
        model.generate(**options, return_token_timestamps=True)
    assert model.config._attn_implementation == "regard"
    explained = explain(model, {"input_features": sounds, "decoder_input_ids": IDS})
    assert len(explained.calls) == 6
    words = model.generate(**options)
    timed = detach(model).generate(**options, return_token_timestamps=True)
    assert timed["token_timestamps"].shape == timed["sequences"].shape
    assert torch.equal(detach(model).generate(**options), words)
