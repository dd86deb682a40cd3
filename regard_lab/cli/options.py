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
    exclude = {
        "--beam": None if beam == 1 else beam,
        "--cache": None if cache == "static" else cache,
        **{flag(name): value for name, value in others.items()},
        "--cache-dtype": cache_dtype,
    }
    excluding = options_set(exclude)
    if excluding:
        raise ArgumentError(
            f"--compile and {excluding[0]} exclude each other: a compiled step adds one id to one "
            f"text, in a static cache with the dtype of the weights"
        )
    return "static"


def flag(name: str) -> str:
    """The option of a setting, as it is typed.

    >>> flag("top_k")
    '--top-k'
    """
    return f"--{name.replace('_', '-')}"


def options_set(values: Mapping[str, object]) -> list[str]:
    """The names of the options that were typed: their values are not None.

    >>> options_set({"--layer": 0, "--head": None})
    ['--layer']
    """
    return [name for name, value in values.items() if value is not None]


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
    options: dict[str, Any] = {}
    for name, field in settings.items():
        options[name] = option(config, field, kinds[name], variants or {})

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**values: Any) -> None:
            given = {}
            for name in options:
                value = values.pop(name)
                if value not in (None, []):
                    given[name] = tuple(value) if isinstance(value, list) else value
            try:
                command(**values, given=given)
            except ArgumentError as error:
                raise ArgumentError(named_as_option(str(error), settings)) from error

        # Typer reads the options of a command from its signature and its annotations.
        parameters = _parameters_with(options, command)
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        run.__signature__ = inspect.Signature(parameters)  # ty: ignore[missing-attribute]
        return run

    return decorate


def _parameters_with(
    options: Mapping[str, Any], command: Callable[..., None]
) -> list[inspect.Parameter]:
    """The parameters of a command as keywords, with the options in the place of `given`."""
    hints = get_type_hints(command, include_extras=True)
    parameters = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name == "given":
            parameters += [_keyword(name, kind, None) for name, kind in options.items()]
        else:
            kind = hints[parameter.name]
            parameters.append(_keyword(parameter.name, kind, parameter.default))
    return parameters


def _keyword(name: str, kind: Any, value: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=kind)


def named_as_option(message: str, known: Mapping[str, Field[Any]]) -> str:
    """The message with a setting at its beginning written as the option that sets it.

    >>> from dataclasses import field
    >>> named_as_option("learning_rate is -1; it must be above 0", {"learning_rate": field()})
    '--learning-rate is -1; it must be above 0'
    """
    beginning = re.match(r"(?:encoder_|decoder_|cross_)?(\w+)(?= (?:is|has) )", message)
    if beginning is None or beginning[1] not in known:
        return message
    name = beginning[1]
    option = known[name].metadata.get("option", flag(name)).split("/")[0]
    return option + message[beginning.end() :]


def option(
    config: type[DataclassInstance],
    field: Field[Any],
    kind: Any,
    variants: Mapping[str, Mapping[str, Any]],
) -> Any:
    """One field as an option. Without it the value is None, so that a command sees which settings were given."""
    metadata = field.metadata
    kind = option_type(kind)
    names = []  # Typer makes the name from that of the parameter
    if "option" in metadata:
        names = [metadata["option"]]
    elif kind is bool:
        names = [flag(field.name)]  # without this one Typer adds --no-...

    sentences = [sentence_of(config, field.name), default_text(field, variants)]
    shown: dict[str, Any] = {
        "help": " ".join(filter(None, sentences)),
        "metavar": metadata.get("metavar", "NAME" if kind is str else None),
        "min": metadata.get("least"),
        "show_default": False,
    }
    return Annotated[kind | None, Option(*names, **shown)]  # ty: ignore[invalid-type-form]


def option_type(kind: Any) -> Any:
    """The type of an option from that of its field, without None; a tuple is a repeated option.

    >>> option_type(int | None), option_type(tuple[str, ...])
    (<class 'int'>, list[str])
    """
    if get_origin(kind) is tuple:
        return GenericAlias(list, get_args(kind)[:1])
    members = [member for member in get_args(kind) if member is not NoneType]
    return members[0] if members else kind


def fields_in_order(config: type[DataclassInstance]) -> list[Field[Any]]:
    """The fields that are options: the data first, then those of the class itself, then those of its bases."""
    known = {field.name: field for field in fields(config) if field.metadata.get("is_option")}
    names = ["data", "valid"]
    for kind in config.__mro__:
        names += vars(kind).get("__annotations__", ())
    return [known[name] for name in dict.fromkeys(names) if name in known]


def sentence_of(config: type[DataclassInstance], name: str) -> str:
    """The sentence about a field under Args in the docstring of a Config, or of its nearest base that has one."""
    for kind in config.__mro__:
        _, _, arguments = (inspect.cleandoc(kind.__doc__ or "")).partition("Args:\n")
        entry = re.search(rf"^    {name}: (.*(?:\n        .*)*)", arguments, re.MULTILINE)
        if entry is not None:
            words = re.sub(r"\s+", " ", entry[1])
            return words[0].upper() + words[1:]
    raise LookupError(f"{config.__qualname__} has no sentence about {name}; write one under Args")


def default_text(field: Field[Any], variants: Mapping[str, Mapping[str, Any]]) -> str:
    """The default in brackets, and the variants of it; nothing for what is off, empty or required."""
    value = field.metadata.get("shown", field.default)
    is_off = value is False and "option" not in field.metadata
    if value is MISSING or value is None or value == () or is_off:
        return ""
    defaults = [_in_words(value)]
    for where, values in variants.items():
        if field.name in values:
            defaults.append(f"{_in_words(values[field.name])} {where}")
    return f"[default: {'; '.join(defaults)}]"


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
