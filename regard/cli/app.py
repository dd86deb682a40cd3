"""The commands and their options; each imports what it needs when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.convert_app import add_conversions
from regard.cli.lesson import lesson
from regard.cli.numbers import App
from regard.cli.run_app import add_run_commands
from regard.cli.train_app import add_commands
from regard.cli.walkthrough import walkthrough

app = App(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip
train_app = App(help="Train a model.", no_args_is_help=True)
app.add_typer(train_app, name="train")
add_commands(train_app)
convert_app = App(help="Change a trained model.", no_args_is_help=True)
app.add_typer(convert_app, name="convert")
add_conversions(convert_app)
app.command()(lesson)
add_run_commands(app)
app.command()(walkthrough)

Json = Annotated[bool, typer.Option("--json", help="Answer with JSON on standard output.")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a training, or a saved model.")]
Beam = Annotated[int, typer.Option(min=1, help="Hypotheses kept at each step; 1 is greedy search.")]
Normalisation = Annotated[str, typer.Option(help="How the scores of a beam allow for length: none, average or gnmt.")]
Alpha = Annotated[float, typer.Option(help="The exponent of gnmt.")]


def _version(asked: bool) -> None:
    if asked:
        from regard import __version__

        typer.echo(f"regard {__version__}")
        raise typer.Exit


@app.callback()
def regard(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    """Attention for PyTorch: train, translate, score and see what a model looks at."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(metavar="RUN", help="Where the run is kept; an interrupted one goes on.")] = Path(
        "runs/demo"
    ),
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps; fewer are faster and worse.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the weights and the order of the data.")] = 0,
    as_json: Json = False,
) -> None:
    """Train, translate, score and look, on an embedded corpus."""
    from regard.cli.demo import run_demo

    run_demo(out, steps=steps, seed=seed, as_json=as_json)


@app.command()
def translate(
    run: Run,
    sentences: Annotated[
        list[str] | None,
        typer.Argument(metavar="SENTENCE", help="Or lines on standard input.", show_default=False),
    ] = None,
    beam: Beam = 1,
    normalisation: Normalisation = "gnmt",
    alpha: Alpha = 0.6,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw the attention of one sentence.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Translate sentences: one line out for each line in."""
    from regard.cli.translate import run_translate

    run_translate(
        run, sentences or [], beam=beam, normalisation=normalisation, alpha=alpha, picture=picture, as_json=as_json
    )


@app.command()
def generate(
    run: Run,
    prompts: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROMPT", help="Or lines on standard input.", show_default=False),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Below 1 sharper, above 1 evener; 0 for the likeliest. [default: 1]")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw among the k likeliest ids.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw among the likeliest that together reach p.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Draw among those p times as likely as the likeliest.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the draws; the same seed, the same text. [default: 0]")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="The most sub-words that are written.")] = 100,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="End before this text; may be repeated.")
    ] = None,
    beam: Beam = 1,
    normalisation: Normalisation = "none",
    alpha: Alpha = 0.6,
    as_json: Json = False,
) -> None:
    """Continue prompts with a language model, in the order temperature, top-k, top-p, min-p."""
    draws = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seed}
    from regard.cli.generate import run_generate

    run_generate(
        run, prompts or [], draws=draws, max_tokens=max_tokens, stop=stop or [], beam=beam,
        normalisation=normalisation, alpha=alpha, as_json=as_json,
    )  # fmt: skip


@app.command()
def evaluate(
    run: Run,
    test: Annotated[
        list[str] | None, typer.Argument(metavar="TEST.tsv", help="By default the run's own test split.")
    ] = None,
    beam: Beam = 1,
    normalisation: Normalisation = "gnmt",
    alpha: Alpha = 0.6,
    as_json: Json = False,
) -> None:
    """Score a translator: BLEU, chrF, exact match, perplexity."""
    from regard.cli.evaluate import run_evaluate

    run_evaluate(run, test or [], beam=beam, normalisation=normalisation, alpha=alpha, as_json=as_json)


@app.command()
def show(
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="Such as 'causal & sliding_window(8)'.")],
    length: Annotated[int, typer.Option(min=1, help="Queries, and keys unless told apart.")] = 16,
    keys: Annotated[int | None, typer.Option(min=1, help="Keys, where there are more or fewer than queries.")] = None,
    layers: Annotated[int, typer.Option(min=1, help="Show also what a stack of so many layers learns from.")] = 1,
    png: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw into a file instead.")] = None,
    as_json: Json = False,
) -> None:
    """Draw a pattern: which query may look at which key."""
    from regard.cli.show import run_show

    run_show(pattern, length, length if keys is None else keys, png=png, as_json=as_json, layers=layers)


@app.command()
def plan(
    q_len: Annotated[int, typer.Option(min=0, help="Queries.")],
    pattern: Annotated[str, typer.Option(metavar="PATTERN", help="Such as 'causal & causal_window(512)'.")] = "full",
    k_len: Annotated[int | None, typer.Option(min=0, help="Keys. [default: as many as queries]")] = None,
    heads: Annotated[int, typer.Option(min=1, help="Query heads.")] = 8,
    kv_heads: Annotated[int | None, typer.Option(min=1, help="Key/value heads. [default: heads]")] = None,
    head_dim: Annotated[int, typer.Option(min=1, help="Of queries and keys.")] = 64,
    v_dim: Annotated[int | None, typer.Option(min=0, help="Of values. [default: head-dim]")] = None,
    batch: Annotated[int, typer.Option(min=0, help="Texts.")] = 1,
    dtype: Annotated[str, typer.Option(help="float16, bfloat16, float32 or float64.")] = "float32",
    device: Annotated[str, typer.Option(help="cpu or cuda; it need not be here.")] = "cpu",
    grad: Annotated[bool, typer.Option("--grad", help="With gradients of q, k and v.")] = False,
    dropout: Annotated[float, typer.Option(help="Share of the weights dropped.")] = 0.0,
    softcap: Annotated[float | None, typer.Option(help="Scores are capped to plus and minus this.")] = None,
    want: Annotated[
        list[str] | None, typer.Option(metavar="STATISTIC", help="entropy, 'top_keys(8)', ...; may be repeated.")
    ] = None,
    backend: Annotated[str, typer.Option(help="auto for the cheapest, or a name.")] = "auto",
    as_json: Json = False,
) -> None:
    """Say which backend would compute a call, at what cost, and why not another; nothing is computed."""
    given = {name: value for name, value in locals().items() if name != "as_json"}
    from regard.cli.plan import run_plan

    run_plan(**given, as_json=as_json)


@app.command()
def approximation(
    file: Annotated[Path, typer.Argument(metavar="FILE.safetensors", help="With tensors q, k and v of a real call.")],
    pattern: Annotated[str, typer.Option(metavar="PATTERN", help="Of the call, such as 'causal'.")] = "full",
    candidate: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Compare this; may be repeated. [default: a sweep]")
    ] = None,
    scale: Annotated[float | None, typer.Option(help="Of the scores. [default: 1 / sqrt(head_dim)]")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How often what draws at random is drawn.")] = 5,
    tolerance: Annotated[float, typer.Option(help="The relative error that a suggestion may have.")] = 0.1,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw error against time as well.")] = None,
    as_json: Json = False,
) -> None:
    """Say what cheaper attention would lose and save on one's own queries, keys and values."""
    from regard.cli.approximation import run_approximation

    run_approximation(
        file, pattern=pattern, candidates=candidate or [], scale=scale, seeds=seeds, tolerance=tolerance, plot=plot,
        as_json=as_json,
    )  # fmt: skip


@app.command()
def compare(
    out: Annotated[Path, typer.Option(metavar="DIR", help="One run for each model, and the report.")],
    data: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="As for the training of the task; or 'pronouns'.")
    ] = None,
    valid: Annotated[list[str] | None, typer.Option(metavar="FILE", help="Validation data; else split off.")] = None,
    task: Annotated[str | None, typer.Option(help="translation or language-model. [default: translation]")] = None,
    models: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="[default: none,bahdanau,luong-general,transformer]")
    ] = None,
    kv_heads: Annotated[
        str | None, typer.Option(metavar="N,...", help="The Transformer once with each, such as 8,2,1.")
    ] = None,
    heads: Annotated[str | None, typer.Option(metavar="N,...", help="Likewise, such as 1,8.")] = None,
    attention: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Likewise, of encoder or language model; repeated.")
    ] = None,
    equal_parameters: Annotated[
        bool, typer.Option("--equal-parameters", help="Widen or narrow all to as many numbers as the first has.")
    ] = False,
    steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps of each. [default: 2000]")] = None,
    dim: Annotated[int | None, typer.Option(min=2, help="Size of the vectors, of all.")] = None,
    layers: Annotated[int | None, typer.Option(min=1, help="Of all.")] = None,
    positions: Annotated[str | None, typer.Option(help="Of the Transformer.")] = None,
    dropout: Annotated[float | None, typer.Option(help="[default: 0.1]")] = None,
    vocab_size: Annotated[int | None, typer.Option(min=260, help="Sub-words at most. [default: 8000]")] = None,
    batch_tokens: Annotated[int | None, typer.Option(min=16, help="Ids in a batch.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Its peak, of all. [default: each model's own]")] = None,
    warmup_steps: Annotated[int | None, typer.Option(min=0, help="[default: each model's own]")] = None,
    schedule: Annotated[str | None, typer.Option(help="inverse_square_root, cosine or constant.")] = None,
    label_smoothing: Annotated[float | None, typer.Option(help="[default: 0.1]")] = None,
    validate_every: Annotated[int | None, typer.Option(min=1, help="Steps. [default: 250]")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="[default: 0]")] = None,
    cache_mib: Annotated[float | None, typer.Option(help="Say how many texts fit so much. [default: 64]")] = None,
    length: Annotated[int | None, typer.Option(min=1, help="Of those texts, in ids. [default: 64]")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on; what is done stays.")] = False,
    as_json: Json = False,
) -> None:
    """Train several attentions under one budget on the same data, and report quality, time and memory."""
    apart = ("out", "resume", "as_json", "models", "kv_heads", "heads", "attention")
    given = {name: value for name, value in locals().items() if name not in ("apart", *apart)}
    given.update(equal_parameters=equal_parameters or None, data=data or None, valid=valid or None)
    from regard.cli.compare import listed, numbered, run_compare

    own = {
        "models": listed(models), "kv_heads": numbered(kv_heads), "heads": numbered(heads), "attention": attention or []
    }  # fmt: skip
    run_compare(out, own, given, resume=resume, as_json=as_json)


@app.command()
def doctor(as_json: Json = False) -> None:
    """Say what is installed, and try every backend on small problems."""
    from regard.cli.doctor import run_doctor

    run_doctor(as_json=as_json)


@app.command()
def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Cases, all unless named; or complexity, and rows of that table."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller sizes: under two minutes in all.")] = False,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where results, report and curves are written.")] = Path(
        "runs/bench"
    ),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the results in the folder.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    as_json: Json = False,
) -> None:
    """Measure regard side by side with what else is installed, each checked before it is timed."""
    from regard.cli.bench import run_bench_command

    run_bench_command(names or [], quick=quick, out=out, resume=resume, device=device, as_json=as_json)
