"""The drawing of a model: its norms stand where the model calls them, and its boxes lead to lessons and classes."""

import json
import re
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

from regard.errors import CheckpointError, UnsupportedError
from regard_lab.lessons import LESSONS
from regard_lab.models import (
    EncoderConfig,
    LanguageConfig,
    LanguageModel,
    RecurrentTranslator,
    TextEncoder,
    TranslationTransformer,
)
from regard_lab.seeing import palette
from regard_lab.seeing.architecture import (
    architecture_of,
    architecture_of_hugging_face,
    draw_svg,
    public_links,
    to_text,
)
from regard_lab.seeing.architecture.hugging_face import FAMILIES
from regard_lab.teaching.drawings import ModelDrawing

SIZES = {"vocab_size": 23, "dim": 12, "heads": 3}
TRANSLATOR = TranslationTransformer.Config(**SIZES, encoder_layers=2, decoder_layers=3)
POST = TranslationTransformer.Config(**SIZES, norm="post", cross_kv_heads=1, tied=False)
LANGUAGE = LanguageConfig(**SIZES, layers=2, pattern=("causal_window(5)", "full"))
ENCODER = EncoderConfig(**SIZES, layers=3, positions="learned", head="classes", classes=2)
LATENT = LanguageConfig(**SIZES, latent_dim=7, positions="none")
CHOOSING = LanguageConfig(**SIZES, chooser="moba", positions="sinusoidal")
LINEAR = LanguageConfig(**SIZES, mechanism="linear_transformer", positions="none")
CONFIGS = (TRANSLATOR, POST, LANGUAGE, ENCODER, LATENT, CHOOSING, LINEAR)


def is_attention(module):
    """Whether this is the innermost module of an attention."""

    def is_called_so(part):
        return "Attention" in type(part).__name__

    return is_called_so(module) and sum(map(is_called_so, module.modules())) == 1


def calls_of(model, *ids):
    """The norms and attentions of a model in the order in which they return."""
    calls = []
    for name, module in model.named_modules():
        # Norms of queries and keys are parts of an attention.
        if type(module).__name__.endswith("Norm") and not name.endswith(("q_norm", "k_norm")):
            module.register_forward_hook(lambda *_: calls.append("norm"))
        elif is_attention(module):
            module.register_forward_hook(lambda *_: calls.append("attention"))
    with torch.no_grad():
        model.eval()(*ids)
    return calls


def drawn_calls(architecture):
    """The norms and attentions of a drawing, from top to bottom."""
    calls = []
    for stack in architecture.stacks:
        calls += ["norm" for box in stack.before if box.title == "Norm"]
        for part in stack.parts * stack.layers:
            if part.place in ("pre", "both"):
                calls.append("norm")
            if part.keys_from:
                calls.append("attention")
            if part.place in ("post", "both"):
                calls.append("norm")
        calls += ["norm" for box in stack.after if box.title == "Norm"]
    return calls


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (TranslationTransformer, TRANSLATOR),
        (TranslationTransformer, POST),
        (LanguageModel, LANGUAGE),
        (TextEncoder, ENCODER),
    ],
)
def test_norms_and_attentions_are_drawn_in_the_order_in_which_the_model_calls_them(kind, config):
    ids = torch.tensor([[5, 6, 7]])
    inputs = (ids, ids) if kind is TranslationTransformer else (ids,)
    assert drawn_calls(architecture_of(config)) == calls_of(kind(config), *inputs)


# The sizes of a small model of each family, by its own names.
LLAMA = {
    "hidden_size": 12,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "num_hidden_layers": 2,
    "intermediate_size": 20,
    "head_dim": 4,
}
BERT = {
    "hidden_size": 12,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "intermediate_size": 20,
}
BART = {
    "d_model": 12,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 20,
    "max_position_embeddings": 30,
}
SMALL = {
    "bert": BERT,
    "roberta": BERT,
    "distilbert": {"dim": 12, "n_heads": 3, "n_layers": 2, "hidden_dim": 20},
    "gpt2": {"n_embd": 12, "n_head": 3, "n_layer": 2, "n_positions": 30},
    "t5": {"d_model": 12, "d_kv": 4, "d_ff": 20, "num_heads": 3, "num_layers": 2},
    "bart": BART,
    "mbart": BART,
    "marian": {**BART, "pad_token_id": 1, "decoder_start_token_id": 1},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_of_hugging_face_is_drawn_as_transformers_computes_it(family):
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(family, vocab_size=23, **SMALL.get(family, LLAMA))
    model = transformers.AutoModel.from_config(config)
    ids = torch.tensor([[5, 6, 7]])
    inputs = (ids, None, ids) if config.is_encoder_decoder else (ids,)

    architecture = architecture_of_hugging_face(json.loads(config.to_json_string()))

    assert drawn_calls(architecture) == calls_of(model, *inputs)
    attentions = {box.details[0] for box in architecture.boxes() if "ttention" in box.title}
    shares = ", 1 of keys and values" if "num_key_value_heads" in SMALL.get(family, LLAMA) else ""
    assert attentions == {f"3 heads of 4{shares}"}


def test_an_unknown_family_and_a_config_without_a_size_are_refused():
    with pytest.raises(UnsupportedError, match="type 'gpt_neox' stand is not known here"):
        architecture_of_hugging_face({"model_type": "gpt_neox"})
    with pytest.raises(CheckpointError, match="none of num_attention_heads, n_head"):
        architecture_of_hugging_face({"model_type": "bert", "hidden_size": 12})
    with pytest.raises(CheckpointError, match=r"hidden_size in config\.json is '12'"):
        architecture_of_hugging_face({"model_type": "bert", "hidden_size": "12"})
    with pytest.raises(UnsupportedError, match="a RecurrentConfig is drawn by no figure"):
        architecture_of(RecurrentTranslator.Config(vocab_size=23, dim=12, hidden=12))


@pytest.mark.parametrize("config", CONFIGS)
def test_each_box_leads_to_its_lesson_and_to_its_class(config):
    architecture = architecture_of(config)
    reference = Path(__file__).parents[3] / "docs" / "reference"
    for box in architecture.boxes():
        assert box.lesson in LESSONS
        assert box.owner is not None or box.title == "Softmax"

    page = ModelDrawing(architecture, "")._repr_markdown_()
    for address in re.findall(r'<a href="([^"]+)"', page):
        if address.startswith("../reference/"):
            package, _, path = address.removeprefix("../reference/").partition(".html#")
            assert f"::: {path}\n" in (reference / f"{package}.md").read_text("utf-8")
        elif not address.startswith("https://docs.pytorch.org/"):
            assert address.removesuffix(".html") in LESSONS


@pytest.mark.parametrize("config", CONFIGS)
def test_a_saved_svg_says_lessons_and_classes_and_holds_no_path_of_the_machine(config):
    architecture = architecture_of(config)
    for svg in (
        draw_svg(architecture, public_links()),
        ModelDrawing(architecture, "")._repr_svg_(),
    ):
        assert "file:" not in svg
        assert str(Path.home()) not in svg
        assert str(Path(palette.__file__).parent) not in svg
        for address in re.findall(r'href="([^"]+)"', svg):
            assert address.startswith("https://docs.pytorch.org/docs/stable/generated/torch.nn.")

        titles = set(re.findall(r"<title>([^<]+)</title>", svg))
        assert titles >= {f"regard lesson {box.lesson}" for box in architecture.boxes()}
        classes = {title for title in titles if " " not in title}
        owners = set()
        for address in classes:
            module, _, name = address.rpartition(".")
            owners.add(getattr(import_module(module), name))
        assert owners == {architecture.owner, *(box.owner for box in architecture.boxes())} - {None}


def test_what_is_special_in_an_attention_chooses_its_lesson():
    def lesson(config):
        return architecture_of(config).stacks[-1].parts[-2].box.lesson

    lessons = [lesson(config) for config in CONFIGS]
    assert lessons == ["cross", "grouped", "windows", "encoder", "latent", "choosing", "linear"]


def test_keys_and_values_of_cross_attention_come_from_the_encoder():
    _, decoder = architecture_of(TRANSLATOR).stacks
    assert [part.keys_from for part in decoder.parts] == ["itself", "encoder", ""]
    svg = draw_svg(architecture_of(TRANSLATOR), public_links())
    from_the_encoder = svg.count('class="context" marker-end')
    assert from_the_encoder == 2  # to k and to v
    assert 'class="context"' not in draw_svg(architecture_of(LANGUAGE), public_links())
    assert "q from x, k and v from the encoder's output" in to_text(architecture_of(TRANSLATOR))


def test_the_text_of_a_config_stays_text():
    name = '<script>alert("a & b")</script>'
    config = {"model_type": "bert", "vocab_size": 23, "hidden_act": name, **BERT}
    svg = draw_svg(architecture_of_hugging_face(config), public_links())
    root = ElementTree.fromstring(svg)
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert "script" not in tags
    details = [element.text for element in root.iter() if element.get("class") == "detail"]
    assert name.split()[0] in " ".join(details)


def test_every_colour_of_the_drawing_is_one_of_the_palette():
    svg = draw_svg(architecture_of(TRANSLATOR), public_links())
    known = Path(palette.__file__).with_name("palette.json").read_text("utf-8")
    assert set(re.findall(r"#[0-9a-f]{6}", svg)) <= set(re.findall(r"#[0-9a-f]{6}", known))
    for scheme in ("(prefers-color-scheme: dark)", '="default"', '="slate"'):
        assert scheme in svg


@pytest.mark.parametrize("width", [30, 48, 100])
def test_no_line_of_the_text_is_wider_than_the_terminal(width):
    for config in CONFIGS:
        lines = to_text(architecture_of(config), width).splitlines()
        assert max(map(len, lines)) <= width


def test_the_model_of_a_class_of_torch_leads_to_its_documentation():
    svg = draw_svg(architecture_of(POST), public_links())
    assert f"generated/torch.nn.{nn.LayerNorm.__name__}.html" in svg
