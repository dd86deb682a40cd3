"""The commands as a table; each is imported when it runs, so that `--help` is instant, and its numbers are checked."""

import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, get_args

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from regard import __version__
from regard.errors import ArgumentError
from regard_lab.cli.interrupts import heed_interrupts

# The usage and options of every command, as its help shows them. Options take their defaults from functions and Configs
# whose modules import torch, which takes seconds; so `make figures` writes the help here, and a test keeps it current.
HELP_FILE = Path(__file__).with_name("help.json")
LONE_SURROGATES = re.compile("[\ud800-\udfff]")  # bytes of a word that are not UTF-8
RANGE = re.compile(r"Input should be (greater|less) than or equal to (-?\d+)")  # in the message of Typer
USAGE_ERROR: Any = typer.BadParameter.__base__  # any mistake in what was typed
VALUES = {int: "N", float: "X", Path: "FILE", str: "TEXT"}  # an option's value in the help, if it has no other word


class Source(NamedTuple):
    """Where a command is: a function of a module in `regard_lab.cli`, and the sentence that its help begins with."""

    module: str
    function: str
    sentence: str

    @property
    def place(self) -> str:
        """The key of the command in `help.json`, such as `train.translation`."""
        return f"{self.module}.{self.function}"


class Completion(NamedTuple):
    """A word that Tab offers, with the sentence that some shells show beside it, as Typer reads them."""

    value: str
    help: str
    type: str = "plain"


class Checked(TyperCommand):
    """A command whose numbers fit 64 bits, and are finite, and which Ctrl-C interrupts once it has begun."""

    def invoke(self, ctx: Any) -> Any:
        heed_interrupts()
        return super().invoke(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        typed = tuple(args)
        try:
            left = super().parse_args(ctx, args)
        except USAGE_ERROR as error:
            if (sentence := in_a_sentence(ctx.command_path, error, typed)) is None:
                raise
            raise ArgumentError(sentence) from error
        ctx.params = {name: as_typed(value, typed) for name, value in ctx.params.items()}
        options = {one.name for one in self.params if not isinstance(one, TyperArgument)}
        for name, value in ctx.params.items():
            for one in value if isinstance(value, list | tuple) else (value,):
                if fault := fault_of(one, is_option=name in options):
                    raise typer.BadParameter(f"--{name.replace('_', '-')} is {fault}", ctx=ctx)
        return left


def fault_of(value: object, *, is_option: bool) -> str | None:
    """What an option cannot take: a text that is not UTF-8, a number that is not finite or does not fit 64 bits."""
    if is_option and isinstance(value, str) and LONE_SURROGATES.search(value):
        return f"{value!r}, which is not text in UTF-8"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value}; it needs a finite number"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return f"a number of {value.bit_length()} bits; numbers have at most 63"
    return None


def as_typed(value: Any, typed: Sequence[str]) -> Any:
    """A whole number, if one was typed for an option that takes fractions too: an error quotes it as it was typed.

    >>> as_typed(-1.0, ["--minutes", "-1"]), as_typed(2.0, ["--dropout=2"]), as_typed(2.0, ["--dropout", "2.0"])
    (-1, 2, 2.0)
    >>> as_typed(1e16, ["--dropout=10000000000000000"])  # from 2**53 on a float may differ from what was typed
    1e+16
    """
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        whole = str(int(value))
        if any(whole in (word, word.partition("=")[2]) for word in typed):
            return int(value)
    return value


def in_quotes(text: str) -> str:
    """A text as it is typed in a shell.

    >>> print(in_quotes("My cat sleeps"), in_quotes('a "b" $c'))
    "My cat sleeps" 'a "b" $c'
    """
    return shlex.quote(text) if set(text) & set('"$`\\!') else f'"{text}"'


def in_a_sentence(command: str, error: Any, typed: Sequence[str]) -> str | None:
    """A sentence for a number that an option does not take, or for a text without quotes; None for other mistakes."""
    if outside := RANGE.fullmatch(str(error)):
        names = error.param.opts
        given = [typed[place + 1] for place, word in enumerate(typed[:-1]) if word in names]
        given += [word.partition("=")[2] for word in typed if "=" in word and word.partition("=")[0] in names]
        bound = f"at {'least' if outside[1] == 'greater' else 'most'} {outside[2]}"
        return f"{names[0]} is {given[-1][:40]}; it has to be {bound}" if given else None
    if extra := re.search(r"unexpected extra argument(?:s|\(s\))? \((.*)\)", str(error)):
        words = [word for word in typed if not word.startswith("-")]
        return (
            f"{command} takes one text, and {extra[1]!r} is left over; put a text of several words in "
            f"quotes, as in {command} {in_quotes(' '.join(words))}"
        )
    return None


@cache
def kept_help() -> dict[str, dict[str, Any]]:
    """The help in `help.json` by command: its usage, its arguments and its options, each with a sentence."""
    return json.loads(HELP_FILE.read_text(encoding="utf-8"))


class Unloaded(TyperCommand):
    """A command that is not imported yet: it prints its help from `help.json`, and `load` imports it to run."""

    def __init__(self, name: str, source: Source) -> None:
        loose = {"ignore_unknown_options": True, "allow_extra_args": True}  # the command itself has its options
        super().__init__(name, help=source.sentence, rich_markup_mode=None, context_settings=loose)
        self.source = source

    def load(self) -> Any:
        """The command with its options."""
        function = getattr(import_module(f"regard_lab.cli.{self.source.module}"), self.source.function)
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(self.name, cls=Checked, help=self.source.sentence)(function)
        command: Any = typer.main.get_command(app)
        for parameter in command.params:
            if isinstance(parameter, TyperArgument):
                parameter.display_type_rich = lambda ctx: None  # its name is enough
            elif parameter.metavar is None and not parameter.is_flag:
                kind = parameter.type_descriptor.annotation
                parameter.metavar = VALUES.get(next(iter(get_args(kind)), kind), "TEXT")
        return command

    def can_help(self, ctx: Any, args: list[str]) -> bool:
        """Whether `--help` is the only option; beside another one, which may be a mistake, the command decides."""
        options = [word for word in args if word.startswith("-")]
        return len(options) == 1 and options[0] in ctx.help_option_names and self.source.place in kept_help()

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """The options that begin so, from `help.json`, so that Tab is instant; files are left to the shell."""
        rows = kept_help()[self.source.place]["Options"] if incomplete.startswith("-") else {}
        return [
            Completion(name, sentence)
            for names, sentence in rows.items()
            for name in re.findall(r"(?<!\S)--[a-z][a-z-]*", names)
            if name.startswith(incomplete)
        ]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return kept_help()[self.source.place]["usage"]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        for title in ("Arguments", "Options"):
            if rows := kept_help()[self.source.place][title]:
                with formatter.section(title):
                    formatter.write_dl(list(rows.items()))


class Commands(TyperGroup):
    """A group whose commands are listed by name with their module and sentence; each is imported when it runs."""

    SENTENCES: ClassVar[Mapping[str, tuple[str, str]]]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, (module, sentence) in self.SENTENCES.items():
            self.add_command(Unloaded(name, Source(module, name.replace("-", "_"), sentence)))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if isinstance(command, Unloaded) and not (ctx.resilient_parsing or command.can_help(ctx, rest)):
            command = command.load()
        return name, command, rest


class TopLevel(Commands):
    SENTENCES: ClassVar = {
        "demo": ("demo", "Train, evaluate and inspect a translator on the built-in corpus."),
        "translate": ("translate", "Translate sentences, one line of output for each line of input."),
        "generate": (
            "generate", "Continue prompts with a language model, in the order temperature, top-k, top-p, min-p."
        ),
        "classify": ("generate", "Label texts, one line of output for each line of input."),
        "evaluate": (
            "evaluate",
            "Evaluate a translator (BLEU, chrF, exact match), a language model (perplexity), a classifier (accuracy).",
        ),
        "score": ("evaluate", "Print how probable a model finds given translations or lines: by line, id and word."),
        "average": ("train", "Average the last checkpoints of a training run, which often improves the model."),
        "compare": (
            "evaluate", "Evaluate several models on the same files, such as one before and after a fine-tuning.",
        ),
        "show": ("show", "Draw a pattern: which query may look at which key."),
        "plan": (
            "plan", "Show which backend would compute a call, its cost, and why others are not used; computes nothing."
        ),
        "walkthrough": (
            "walkthrough",
            "Show what attention does with a sentence, step by step: every number, its formula and its line of "
            "PyTorch.",
        ),
        "view": (
            "view",
            "Explore the attention of a trained model, and what each word that it wrote depends on, in a local page.",
        ),
        "export": ("export", "Write a trained model as an ONNX file, which other runtimes run."),
        "lesson": ("lesson", "Check claims of articles about attention by computing them, with numbers and a figure."),
        "lenses": (
            "evaluate",
            "Measure which lens finds the words that a trained translator uses; swapped words verify which these are.",
        ),
        "heads": ("heads", "Measure which heads of a model matter: what it loses when one of them is replaced."),
        "bench": (
            "bench", "Compare the speed of regard with other installed libraries; results are checked before timing."
        ),
        "doctor": ("bench", "Print versions, and check every backend on small problems."),
    }  # fmt: skip


class Train(Commands):
    SENTENCES: ClassVar = {
        "translation": ("train", "Train a translator on pairs of sentences."),
        "language-model": ("train", "Train a language model on running text."),
        "masked-words": ("train", "Train an encoder to predict hidden words in texts, one per line."),
        "classifier": ("train", "Train an encoder to sort texts by their labels."),
    }


class Convert(Commands):
    SENTENCES: ClassVar = {
        "kv-heads": (
            "train",
            "Give a trained model fewer key/value heads (pooled), or more (repeated), and report what it saves.",
        ),
        "latent": (
            "train",
            "Factorise the keys and values of a trained language model into latents, and report what it saves.",
        ),
    }


app = typer.Typer(
    cls=TopLevel, no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False, rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip
app.add_typer(typer.Typer(cls=Train, help="Train a model.", no_args_is_help=True), name="train")
app.add_typer(typer.Typer(cls=Convert, help="Change a trained model.", no_args_is_help=True), name="convert")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"regard {__version__}")
        raise typer.Exit


@app.callback()
def regard(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Attention for PyTorch: train, translate, evaluate and see what a model looks at."""
