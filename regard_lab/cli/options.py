"""Options that several commands share, and options made from the fields of a Config: name, type, default and help."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, fields
from functools import wraps
from pathlib import Path
from types import GenericAlias, NoneType
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

from typer import Argument, Option

from regard.arguments import suggest
from regard.errors import ArgumentError
from regard_lab.cli.console import note

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

WIDE_BEAM = 100  # from here on, a search is announced as slow
Json = Annotated[bool, Option("--json", help="Print JSON.")]
Run = Annotated[
    Path, Argument(metavar="RUN", help="The folder of a training run or of a saved model.")
]
Beam = Annotated[int, Option(min=1, help="Hypotheses kept at each step; 1 is greedy search.")]
Normalisation = Annotated[
    str,
    Option(
        metavar="none|average|gnmt", help="Length normalisation of the hypotheses in beam search."
    ),
]
Alpha = Annotated[float, Option(help="The exponent of gnmt normalisation.")]
MinLength = Annotated[int, Option(metavar="N", min=0, help="Fewest sub-words of a text.")]
MaxLength = Annotated[
    int | None,
    Option(
        metavar="N",
        min=1,
        help="Most sub-words of a text. [default: twice those of the source, plus 16]",
    ),
]
NoRepeat = Annotated[
    int | None,
    Option(
        metavar="N", min=1, help="No run of N sub-words occurs twice in a text. [default: it may]"
    ),
]
Penalty = Annotated[
    float,
    Option(
        metavar="X",
        min=1,
        help="Multiplies the log-probability of a sub-word that the text has already.",
    ),
]
Cache = Annotated[
    str | None,
    Option(
        "--cache",
        metavar="KIND",
        help="Kind of cache: dynamic, static, ring, paged or state. [default: the model's own choice]",
    ),
]
CacheDtype = Annotated[
    str | None,
    Option(
        metavar="DTYPE",
        help="Storage of the cache, such as int8 or bfloat16. [default: that of the weights]",
    ),
]
KeepPlaceholders = Annotated[
    bool | None,
    Option(
        "--keep-placeholders/--drop-placeholders",
        help="Whether placeholders of a .tmx are written as text. [default: as the run was trained]",
        show_default=False,
    ),
]


Compile = Annotated[
    bool,
    Option(
        "--compile",
        help="Compile a step first, with a C++ compiler. This takes 8 to 20 seconds at each start, so it is for tens "
        "of thousands of sub-words. The text is the same; texts are written one by one.",
    ),
]


def compiling(writer: Any, compiled: bool) -> Any:
    """The generator or translator; with --compile its steps are compiled."""
    if compiled:
        from regard_lab.decoding import compile_steps  # other commands need no model

        note("compiling a step, which can take a minute; Ctrl-C ends it")
        note(f"compiling took {compile_steps(writer.model):.0f} seconds")
    return writer


def check_compiled(beam: int, cache: str | None, cache_dtype: str | None, **others: object) -> str:
    """The kind of cache with --compile; options that exclude it are refused."""
    given = {
        "beam": None if beam == 1 else beam,
        "cache": None if cache == "static" else cache,
        **others,
    }
    given["cache-dtype"] = cache_dtype
    if named := [name for name, value in given.items() if value is not None]:
        raise ArgumentError(
            f"--compile and --{named[0]} exclude each other: a compiled step adds one id to one text, in a static "
            f"cache with the dtype of the weights"
        )
    return "static"


def default(function: Callable[..., Any], name: str) -> Any:
    """The default of an argument, so that a command has that of the function that it calls.

    >>> default(sorted, "reverse")
    False
    """
    return inspect.signature(function).parameters[name].default


def default_note(function: Callable[..., Any], name: str) -> str:
    """The end of an option's help, where None stands for the default of the function that is called.

    >>> default_note(sorted, "reverse")
    '[default: no]'
    """
    return f"[default: {_in_words(default(function, name))}]"


def check_search(normalisation: str, beam: int) -> None:
    """Raise an ArgumentError, before any work, for a search that does not exist; note if it will take long."""
    # It imports the models, which commands without a search do not need.
    from regard_lab.decoding.options import LARGEST_BEAM, NORMALISATIONS

    if beam > LARGEST_BEAM:
        raise ArgumentError(f"--beam is {beam}; it is a whole number from 1 to {LARGEST_BEAM:,}")
    if beam > WIDE_BEAM:
        note(
            f"--beam {beam} keeps {beam:,} hypotheses at each step, which may take {beam:,} times as long as --beam 1, "
            f"and as much memory; 4 to 12 are usual"
        )
    if normalisation not in NORMALISATIONS:
        raise ArgumentError(
            f"--normalisation {normalisation!r} does not exist; {suggest(normalisation, NORMALISATIONS)}"
        )


def with_settings(
    config: type[DataclassInstance],
    variants: Mapping[str, Mapping[str, Any]] | None = None,
    without: Collection[str] = (),
) -> Callable[..., Any]:
    """Give a command the settings of a Config as options, in the place of its parameter `given`.

    All may be left out. The command is called with `given` as a dict of those that were set, which a Config takes.

    Args:
        config: a frozen dataclass whose fields are made by `setting`, with a sentence for each in its docstring.
        variants: defaults that differ from the Config's, by the words for where.
        without: names of settings that this command does not have.
    """
    settings = {field.name: field for field in fields_in_order(config) if field.name not in without}
    kinds = get_type_hints(config)
    options = {
        name: option(config, field, kinds[name], variants or {}) for name, field in settings.items()
    }

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**values: Any) -> None:
            given = {
                name: value for name in options if (value := values.pop(name)) not in (None, [])
            }
            for name, value in given.items():
                given[name] = tuple(value) if isinstance(value, list) else value
            try:
                command(**values, given=given)
            except ArgumentError as error:
                raise ArgumentError(named_as_option(str(error), settings)) from error

        hints = get_type_hints(command, include_extras=True)
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(command).parameters.values():
            own = {parameter.name: (hints[parameter.name], parameter.default)}
            replaced = {name: (kind, None) for name, kind in options.items()}
            parameters += [
                inspect.Parameter(
                    name, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=kind
                )
                for name, (kind, value) in (replaced if parameter.name == "given" else own).items()
            ]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        run.__signature__ = inspect.Signature(parameters)  # ty: ignore[missing-attribute]
        return run

    return decorate


def named_as_option(message: str, known: Mapping[str, Field[Any]]) -> str:
    """The message with a setting at its beginning written as the option that sets it.

    >>> from dataclasses import field
    >>> named_as_option("learning_rate is -1; it must be above 0", {"learning_rate": field()})
    '--learning-rate is -1; it must be above 0'
    """
    found = re.match(r"(?:encoder_|decoder_|cross_)?(\w+)(?= (?:is|has) )", message)
    if found is None or found[1] not in known:
        return message
    flag = known[found[1]].metadata.get("option", f"--{found[1].replace('_', '-')}").split("/")[0]
    return flag + message[found.end() :]


def option(
    config: type[DataclassInstance],
    field: Field[Any],
    kind: Any,
    variants: Mapping[str, Mapping[str, Any]],
) -> Any:
    """One field as an option. Without it the value is None, so that a command sees which settings were given."""
    metadata = field.metadata
    kind = option_type(kind)
    names = [f"--{field.name.replace('_', '-')}"] if kind is bool else []
    names = [metadata["option"]] if "option" in metadata else names
    help_text = " ".join(
        filter(None, (sentence_of(config, field.name), default_text(field, variants)))
    )
    metavar = metadata.get("metavar", "NAME" if kind is str else None)
    more: dict[str, Any] = {"metavar": metavar, "min": metadata.get("least")}
    info = Option(*names, help=help_text, show_default=False, **more)
    return Annotated[kind | None, info]  # ty: ignore[invalid-type-form]


def option_type(kind: Any) -> Any:
    """The type of an option from that of its field, without None; a tuple is a repeated option.

    >>> option_type(int | None), option_type(tuple[str, ...])
    (<class 'int'>, list[str])
    """
    if get_origin(kind) is tuple:
        return GenericAlias(list, get_args(kind)[:1])
    return next((one for one in get_args(kind) if one is not NoneType), kind)


def fields_in_order(config: type[DataclassInstance]) -> list[Field[Any]]:
    """The fields that are options: the data first, then those of the class itself, then those of its bases."""
    known = {field.name: field for field in fields(config) if field.metadata.get("is_option")}
    names = [
        "data",
        "valid",
        *(name for kind in config.__mro__ for name in vars(kind).get("__annotations__", ())),
    ]
    return [known[name] for name in dict.fromkeys(names) if name in known]


def sentence_of(config: type[DataclassInstance], name: str) -> str:
    """The sentence about a field under Args in the docstring of a Config, or of its nearest base that has one."""
    for kind in config.__mro__:
        _, _, arguments = (inspect.cleandoc(kind.__doc__ or "")).partition("Args:\n")
        if entry := re.search(rf"^    {name}: (.*(?:\n        .*)*)", arguments, re.MULTILINE):
            words = re.sub(r"\s+", " ", entry[1])
            return words[0].upper() + words[1:]
    raise LookupError(f"{config.__qualname__} has no sentence about {name}; write one under Args")


def default_text(field: Field[Any], variants: Mapping[str, Mapping[str, Any]]) -> str:
    """The default in brackets, and the variants of it; nothing for what is off, empty or required."""
    value = field.metadata.get("shown", field.default)
    if (
        value is MISSING
        or value is None
        or value == ()
        or (value is False and "option" not in field.metadata)
    ):
        return ""
    others = [
        f"{_in_words(own[field.name])} {words}"
        for words, own in variants.items()
        if field.name in own
    ]
    return f"[default: {'; '.join([_in_words(value), *others])}]"


def _in_words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def listed(text: str | None) -> list[str]:
    """Names from a list with commas.

    >>> listed("none, bahdanau"), listed(None)
    (['none', 'bahdanau'], [])
    """
    return [part.strip() for part in (text or "").split(",") if part.strip()]
