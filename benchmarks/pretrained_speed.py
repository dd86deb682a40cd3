"""Measures models of transformers through regard beside PyTorch's attention and eager attention.

python benchmarks/pretrained_speed.py [--rows NAME ...]

Random models of 8 layers: dim 512, 8 query heads over 2, head_dim 64, windows of 256. Latent attention is that of
DeepSeek-V3 in one layer: dim 1,024, 16 heads, latents of 512 and rotary keys of 64. Times are medians of CPU seconds
on one thread, measured in turns, and outputs are compared. Decoding is timed for each token with a cache that is
already filled. Rows named "greedy step" have 4 layers, and CTranslate2 and onnxruntime-genai get the same weights in
float32; the difference is the number of other ids, and a step is 32 more ids less the prompt with one id. There
"regard" is attached and compiled, with a static cache and with products of one row as sums (`one_row_options`).
The report in results/ is written after each row; `--rows` measures some rows again.
"""

import json
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from itertools import chain
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers as tf

from benchmarks.report import RESULTS, heading, options, write
from regard.integrations.transformers import attach, latent_cache, observe
from regard_lab.bench.measuring import Pace, take_turns
from regard_lab.bench.results import environment
from regard_lab.decoding import one_row_options
from regard_lab.text.writing import markdown_table, seconds

OUT = RESULTS / "pretrained_speed_cpu"  # also where rows are renewed
SELF = "python benchmarks/pretrained_speed.py"
VOCAB = 1000
WINDOW = 256
BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "intermediate_size": 1408,
    "max_position_embeddings": 32768,
    "num_hidden_layers": 8,
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 64}
# The keyword of a model for a cache, which transformers 5.24 renamed.
CACHE = "cache" if "cache" in signature(tf.LlamaModel.forward).parameters else "past_key_values"


def mistral() -> Any:
    return tf.MistralModel(tf.MistralConfig(**BASE, **GROUPED, sliding_window=WINDOW))


def llama() -> Any:
    return tf.LlamaModel(tf.LlamaConfig(**BASE, **GROUPED))


def modern_bert() -> Any:
    sizes = {
        **BASE,
        "intermediate_size": 768,
        "local_attention": WINDOW,
        "global_attn_every_n_layers": 3,
    }
    return tf.ModernBertModel(tf.ModernBertConfig(**sizes, pad_token_id=0, reference_compile=False))


def gemma2() -> Any:
    scores = {"sliding_window": WINDOW, "attn_logit_softcapping": 50.0, "query_pre_attn_scalar": 64}
    return tf.Gemma2Model(tf.Gemma2Config(**BASE, **GROUPED, **scores))


def deepseek() -> Any:
    sizes: dict[str, Any] = {
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "intermediate_size": 256,
        "num_hidden_layers": 1,
        "first_k_dense_replace": 1,
        "q_lora_rank": None,
        "pad_token_id": 0,
    }
    return attach(tf.DeepseekV3Model(tf.DeepseekV3Config(**{**BASE, **sizes})).eval())


@dataclass(frozen=True)
class Timed:
    """One comparison: how many times faster than `other` regard is to be, if that is promised."""

    name: str
    model: Callable[[], Any]
    kind: str  # forward, train, decode, observe
    length: int
    promised: float | None = None
    other: str = "sdpa"
    batch: int = 1
    padded: bool = False

    def inputs(self) -> dict[str, torch.Tensor]:
        inputs = {"input_ids": torch.randint(1, VOCAB, (self.batch, self.length))}
        if self.padded:
            live = torch.ones(self.batch, self.length, dtype=torch.long)
            live[0, : self.length // 4] = 0  # left padding, as generation has it
            inputs["attention_mask"] = live
        return inputs


TIMED = [
    Timed("forward, windows", mistral, "forward", 8192, 3.5),
    Timed("forward, windows and global layers", modern_bert, "forward", 8192, 3.0),
    Timed("forward, softcap", gemma2, "forward", 4096, 5.0, other="eager"),
    Timed("forward, padded batch, 2,048", mistral, "forward", 2048, 1.7, batch=2, padded=True),
    Timed("forward, padded batch, 4,096", mistral, "forward", 4096, 1.7, batch=2, padded=True),
    Timed("forward, 16 tokens", mistral, "forward", 16),
    Timed("training step, windows and global layers", modern_bert, "train", 4096, 2.0),
    Timed("decoding, dynamic cache, 256", llama, "decode", 256),
    Timed("decoding, dynamic cache, 2,048", llama, "decode", 2048, 0.97),
    Timed("decoding, dynamic cache, 8,192", llama, "decode", 8192, 0.97),
    Timed("decoding, dynamic cache, 16,384", llama, "decode", 16384, 1.2),
    Timed("decoding, static cache, 256", llama, "decode", 256),
    Timed("decoding, static cache, 2,048", llama, "decode", 2048, 0.97),
    Timed("decoding, static cache, 8,192", llama, "decode", 8192, 0.97),
    Timed("decoding, static cache, 16,384", llama, "decode", 16384, 0.97),
    Timed("decoding, sliding cache, 256", mistral, "decode", 256),
    Timed("decoding, sliding cache, 2,048", mistral, "decode", 2048, 0.97),
    Timed("decoding, sliding cache, 8,192", mistral, "decode", 8192, 0.97),
    Timed("decoding, sliding cache, 16,384", mistral, "decode", 16384, 0.97),
    *(
        Timed(f"decoding, padded batch of 4, {n:,}", llama, "decode", n, 0.97, batch=4, padded=True)
        for n in (2048, 8192, 16384)
    ),
    Timed("latent step, latent_cache, 4,096", deepseek, "decode", 4096, 40.0),
    Timed("latent step, the model's own cache, 4,096", deepseek, "decode", 4096, 40.0),
    Timed("latent prompt, 2,048", deepseek, "forward", 2048, 1.0),
    Timed("observing the entropy of all layers", mistral, "observe", 2048, 1 / 1.4, other="plain"),
]


def measured(row: Timed) -> dict[str, Any]:
    """Median seconds of both, and the largest difference of their outputs, relative to the largest of the other."""
    torch.manual_seed(0)
    model = row.model().eval()
    pace = Pace(rounds=3, slow_rounds=3, shortest=0.0)
    if row.kind == "decode":
        pace = Pace(rounds=24, shortest=0.0)
    run = KINDS[row.kind](row, model)
    outputs: dict[str, torch.Tensor] = {}

    def call(name: str) -> None:
        outputs[name] = run(name)

    calls = {name: partial(call, name) for name in ("regard", row.other)}
    with nullcontext() if row.kind == "train" else torch.no_grad():
        times = take_turns(calls, time.process_time, pace)
    ours = outputs["regard"]
    other = outputs[row.other]
    medians = {name: times_of_one.median for name, times_of_one in times.items()}
    return {
        "name": row.name,
        "other": row.other,
        "promised": row.promised,
        "medians": medians,
        "ratio": medians[row.other] / medians["regard"],
        "difference": float((ours - other).abs().max() / other.abs().max()),
    }


def rows_of(row: Timed) -> list[dict[str, Any]]:
    """The rows of the report for one comparison: a single one."""
    return [measured(row)]


def forward(row: Timed, model: Any) -> Callable[[str], torch.Tensor]:
    inputs: dict[str, Any] = row.inputs()
    options = {} if row.model is modern_bert else {"use_cache": False}
    unpadded = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))

    def run(name: str) -> torch.Tensor:
        model.set_attn_implementation(name)
        return model(**inputs, **options).last_hidden_state * unpadded[..., None]

    return run


def train(row: Timed, model: Any) -> Callable[[str], torch.Tensor]:
    inputs = row.inputs()

    def run(name: str) -> torch.Tensor:
        model.set_attn_implementation(name)
        model.zero_grad()
        model(**inputs).last_hidden_state.square().mean().backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    return run


def decode(row: Timed, model: Any) -> Callable[[str], torch.Tensor]:
    caches = {name: filled(row, model, name) for name in ("regard", row.other)}
    places = dict.fromkeys(caches, row.length)

    def run(name: str) -> torch.Tensor:
        model.set_attn_implementation(name)
        place = places[name]
        places[name] += 1
        mask = None
        if row.padded:
            mask = torch.ones(row.batch, place + 1, dtype=torch.long)
            for batch_row in range(row.batch // 2):
                mask[batch_row, : 100 * (batch_row + 1)] = 0
        inputs = {
            "input_ids": torch.full((row.batch, 1), 5),
            "position_ids": torch.full((row.batch, 1), place),
            "attention_mask": mask,
            CACHE: caches[name],
        }
        return model(**inputs).last_hidden_state

    return run


def filled(row: Timed, model: Any, name: str) -> Any:
    """A cache of `length` positions, and room for those that are decoded."""
    if name == "regard" and "latent_cache" in row.name:
        cache = latent_cache(model)
    elif "static" in row.name:
        cache = tf.StaticCache(config=model.config, max_cache_len=row.length + 64)
    elif "sliding" in row.name:
        cache = tf.DynamicCache(config=model.config)
    else:
        cache = tf.DynamicCache()
    generator = torch.Generator().manual_seed(0)
    for layer in range(model.config.num_hidden_layers):
        if row.model is deepseek:
            keys = torch.randn(row.batch, 1, row.length, 512, generator=generator)
            values = torch.randn(row.batch, 1, row.length, 64, generator=generator)
        else:
            keys = torch.randn(row.batch, 2, row.length, 64, generator=generator)
            values = keys.flip(2)
        cache.update(keys, values, layer)
    return cache


def observing(row: Timed, model: Any) -> Callable[[str], torch.Tensor]:
    inputs = row.inputs()
    model.set_attn_implementation("regard")

    def run(name: str) -> torch.Tensor:
        with observe(model, "entropy") if name == "regard" else nullcontext():
            return model(**inputs, use_cache=False).last_hidden_state

    return run


KINDS = {"forward": forward, "train": train, "decode": decode, "observe": observing}
STEPS = 32
GREEDY = {64: "greedy step after 64 ids", 256: "greedy step after 256 ids"}
Greedy = Callable[[int], list[int]]  # this many ids that follow a prompt


def steps(length: int) -> list[dict[str, Any]]:
    """The time of a step of the same model in each library; a library that is not installed is named."""
    torch.manual_seed(0)
    torch.compiler.reset()
    config = tf.LlamaConfig(**{**BASE, "num_hidden_layers": 4}, **GROUPED)
    model = tf.LlamaForCausalLM(config).eval()
    prompt = torch.randint(3, VOCAB, (1, length))
    pace = Pace(rounds=9, slow_rounds=9, shortest=0.0)
    sums = one_row_options()
    with TemporaryDirectory() as folder, torch.no_grad():
        runs = {
            "regard": by_transformers(model, "regard", prompt, compiled=True, options=sums),
            "regard, with PyTorch's products": by_transformers(
                model, "regard", prompt, compiled=True
            ),
            "regard, not compiled": by_transformers(model, "regard", prompt),
            "sdpa, compiled": by_transformers(model, "sdpa", prompt, compiled=True, options=sums),
            "sdpa": by_transformers(model, "sdpa", prompt),
        }
        saved(model, folder)
        peers = {"ctranslate2": by_ctranslate2, "onnxruntime_genai": by_genai}
        for name, make in peers.items():
            if find_spec(name) is not None:
                runs[name] = make(folder, prompt[0].tolist())
        ids = {name: run(STEPS + 1) for name, run in runs.items()}
        calls = {}
        for name, run in runs.items():
            calls[f"{name}: prompt"] = partial(run, 1)
            calls[f"{name}: steps"] = partial(run, STEPS + 1)
        times = take_turns(calls, time.process_time, pace)

    medians = {}
    for name in runs:
        of_steps = times[f"{name}: steps"].median - times[f"{name}: prompt"].median
        medians[name] = of_steps / STEPS
    common = {"name": GREEDY[length], "promised": None}
    rows = []
    for name in runs:
        if name == "regard":
            continue
        pairs = zip(ids[name], ids["regard"], strict=True)
        rows.append(
            {
                **common,
                "other": name,
                "medians": {"regard": medians["regard"], name: medians[name]},
                "ratio": medians[name] / medians["regard"],
                "difference": sum(theirs != ours for theirs, ours in pairs),
            }
        )
    for name in peers:
        if name not in runs:
            rows.append({**common, "other": name, "missing": "is not installed"})
    return rows


def by_transformers(
    model: Any, name: str, prompt: torch.Tensor, *, compiled: bool = False, options: Any = None
) -> Greedy:
    model = deepcopy(model)
    model.set_attn_implementation(name)
    static = tf.StaticCache(config=model.config, max_cache_len=512)
    step = torch.compile(model, fullgraph=True, options=options) if compiled else model

    def run(count: int) -> list[int]:
        static.reset()
        cache = {CACHE: static if compiled else tf.DynamicCache()}
        logits = model(prompt, **cache).logits
        ids = [int(logits[0, -1].argmax())]
        while len(ids) < count:
            logits = step(torch.tensor([ids[-1:]]), **cache).logits
            ids.append(int(logits[0, -1].argmax()))
        return ids

    return run


def saved(model: Any, folder: str) -> None:
    """The model with a tokenizer whose words are `t0`, `t1` ..., as converters read it."""
    tokenizers = import_module("tokenizers")
    ids = {f"t{number}": number for number in range(VOCAB)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="t0"))
    special = {"unk_token": "t0", "bos_token": "t1", "eos_token": "t2"}
    tokenizer = tf.PreTrainedTokenizerFast(tokenizer_object=words, **special)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def by_ctranslate2(folder: str, prompt: list[int]) -> Greedy:
    library = import_module("ctranslate2")
    out = f"{folder}/ctranslate2"
    library.converters.TransformersConverter(folder).convert(out)
    model = library.Generator(
        out, device="cpu", compute_type="float32", inter_threads=1, intra_threads=1
    )
    words = [f"t{number}" for number in prompt]

    def run(count: int) -> list[int]:
        (result,) = model.generate_batch(
            [words], max_length=count, beam_size=1, include_prompt_in_result=False
        )
        return result.sequences_ids[0]

    return run


def by_genai(folder: str, prompt: list[int]) -> Greedy:
    library = import_module("onnxruntime_genai")
    builder = import_module("onnxruntime_genai.models.builder")
    # name, model, output, precision, provider, cache
    arguments = ("", folder, f"{folder}/genai", "fp32", "cpu", f"{folder}/kept")
    builder.create_model(*arguments, **builder.parse_extra_options(*arguments, []))
    config = library.Config(f"{folder}/genai")
    one_thread = {"session_options": {"intra_op_num_threads": 1}}
    config.overlay(json.dumps({"model": {"decoder": one_thread}}))
    model = library.Model(config)

    def run(count: int) -> list[int]:
        parameters = library.GeneratorParams(model)
        parameters.set_search_options(max_length=len(prompt) + count, do_sample=False)
        generator = library.Generator(model, parameters)
        ids = []
        generator.append_tokens(prompt)
        while len(ids) < count:
            generator.generate_next_token()
            ids.append(int(generator.get_next_tokens()[0]))
        return ids

    return run


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    if "missing" in row:
        return row["name"], "", f"{row['other']} {row['missing']}", "", "", ""
    other = row["other"]
    promised = ""
    if row["promised"] is not None:
        verdict = "kept" if row["ratio"] >= row["promised"] else "missed"
        promised = f"{row['promised']:.2f} {verdict}"
    return (
        row["name"],
        seconds(row["medians"]["regard"]),
        f"{other} {seconds(row['medians'][other])}",
        f"{row['ratio']:.2f}",
        promised,
        f"{row['difference']:.0e}",
    )


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rows", nargs="*", default=[], help="parts of names of rows")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    tf.logging.set_verbosity_error()
    warnings.simplefilter("ignore", FutureWarning)
    path = OUT / "speed.json"
    rows: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    if path.is_file():
        for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
            rows[row["name"]].append(row)
    measures: dict[str, Callable[[], list[dict[str, Any]]]] = {}
    for timed in TIMED:
        measures[timed.name] = partial(rows_of, timed)
    for length, name in GREEDY.items():
        measures[name] = partial(steps, length)

    about = (
        f", transformers {tf.__version__}: medians of one thread's CPU time; 8 layers, greedy 4; "
        f"{environment()['processor']}"
    )
    for name, measure in measures.items():
        if asked.rows and not any(part in name for part in asked.rows):
            continue
        rows[name] = measure()
        ordered = list(chain.from_iterable(rows[measure] for measure in measures))
        head = ("row", "regard", "other", "ratio", "promised", "difference")
        page = [
            *heading("Models of transformers: speed", about, SELF),
            *markdown_table(head, map(cells, ordered)),
        ]
        print(write(OUT, "speed", {"rows": ordered}, page), name, flush=True)


if __name__ == "__main__":
    main()
