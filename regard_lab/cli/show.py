"""`regard show`: a pattern or a model drawn."""

from inspect import getdoc
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from regard.arguments import count_of
from regard.errors import ArgumentError, NotFoundError
from regard.patterns import Pattern, parse
from regard.patterns.arguments import runs, words
from regard.patterns.drawing import draw, learned
from regard.patterns.registry import usage
from regard_lab.cli.console import check_name, out, out_json, out_lines, out_text, out_width
from regard_lab.cli.options import Json, default, options_set

LENGTH = 16  # queries of a drawing


def show(
    pattern: Annotated[
        str | None,
        Argument(
            metavar="PATTERN",
            help="The pattern, such as 'causal & sliding_window(8)'; or the folder of a model, of regard or Hugging "
            "Face.",
        ),
    ] = None,
    length: Annotated[
        int | None,
        Option(min=1, help=f"Number of queries, and of keys by default. [default: {LENGTH}]"),
    ] = None,
    keys: Annotated[int | None, Option(min=1, help="Keys. [default: as many as queries]")] = None,
    layers: Annotated[
        int | None,
        Option(min=1, help="Also show from which positions a stack of this many layers learns."),
    ] = None,
    png: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Draw into a PNG, SVG or PDF instead of the terminal; a model into an SVG.",
        ),
    ] = None,
    list_all: Annotated[bool, Option("--list", help="List all patterns instead.")] = False,
    as_json: Json = False,
) -> None:
    """Draw a pattern: which query may look at which key; or a model: its layers, and where q, k and v come from."""
    if list_all:
        _list(pattern, as_json)
        return
    if pattern is None:
        raise ArgumentError(
            "name a pattern, such as 'causal & sliding_window(8)', or the folder of a model; --list prints all patterns"
        )
    if _names_folder(pattern):
        of_patterns = options_set({"--length": length, "--keys": keys, "--layers": layers})
        if of_patterns:
            raise ArgumentError(
                f"{pattern} is a folder, so its model is drawn, and {', '.join(of_patterns)} is for patterns; leave it "
                f"out"
            )
        # Imports the models, which no pattern needs.
        from regard_lab.cli.show_model import show_model

        show_model(Path(pattern), png, as_json)
        return
    parsed = parse(pattern)
    length = LENGTH if length is None else length
    layers = default(draw, "layers") if layers is None else layers
    k_len = length if keys is None else keys
    if png is not None:
        # Imports the models, which no other drawing needs.
        from regard_lab.seeing import draw_pattern

        check_name(png)
        draw_pattern(parsed, length, k_len, png, layers=layers)
    if as_json:
        out_json(_record(parsed, length, k_len, png, layers))
        return
    if png is None:
        out_lines(draw(parsed, length, k_len, layers=layers, width=out_width()))
        out_text("each row is a query, each column a key")
    else:
        out(f"{parsed} drawn in {png}")
    if layers > 1:
        out_text(f"{layers} layers reach {parsed.reach(layers)}")
        out_text(f"the last query learns from {_spans(parsed, k_len, layers)}")


def _names_folder(text: str) -> bool:
    """Whether this is the path of a folder; a pattern of the same name is drawn instead of the folder.

    Raises:
        NotFoundError: a path that does not exist.
    """
    if not text or text in Pattern.registry.names():  # an empty path would mean the current folder
        return False
    try:
        is_folder = Path(text).is_dir()
    except (OSError, ValueError):  # the text is too long for a path, or holds a zero byte
        return False
    if "/" in text and not is_folder:
        raise NotFoundError(f"there is no folder {text}, and no pattern has a slash in its text")
    return is_folder


def _list(pattern: str | None, as_json: bool) -> None:
    """Print each pattern with its arguments and the first sentence of its documentation."""
    if pattern is not None:
        raise ArgumentError(f"--list prints all patterns; leave it out to draw {pattern!r}")
    sentences = {}
    for name in Pattern.registry.names():
        kind = Pattern.registry.kinds[name]
        first_paragraph = (getdoc(kind) or "").split("\n\n")[0]
        sentences[usage(kind)] = " ".join(first_paragraph.split())
    if as_json:
        out_json(sentences)
        return
    for call, sentence in sentences.items():
        out(call)
        out_text(sentence, indent="    ")
    out_text(
        "Join patterns with & (both), | (either) and ~ (not), and group them with parentheses."
    )


def _record(
    pattern: Pattern, q_len: int, k_len: int, png: Path | None, layers: int
) -> dict[str, Any]:
    record: dict[str, Any] = {"pattern": str(pattern), "q_len": q_len, "k_len": k_len}
    record["count"] = pattern.count(q_len, k_len)
    if layers > 1:
        reach = pattern.reach(layers)
        record |= {"layers": layers, "reach": {"back": reach.back, "ahead": reach.ahead}}
    if png is not None:
        return record | {"png": str(png)}
    record["allowed"] = pattern.dense(q_len, k_len).int().tolist()
    if layers > 1:
        record["learned"] = learned(pattern, q_len, k_len, layers).int().tolist()
    return record


def _spans(pattern: Pattern, k_len: int, layers: int) -> str:
    """The positions that the last query learns from, as the spans of a text."""
    positions = learned(pattern, 1, k_len, layers)[0].nonzero().flatten().tolist()
    return f"{len(positions)} of {count_of(k_len, 'positions')}: {words(runs(positions))}"
