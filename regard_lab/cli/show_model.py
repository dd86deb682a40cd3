"""What `regard show` draws of the folder of a model: its architecture, from its config without its weights."""

from pathlib import Path

from regard.errors import ArgumentError, CheckpointError, UnsupportedError
from regard.storage.files import replace_file
from regard_lab.cli.console import check_name, out, out_json, out_lines, out_width
from regard_lab.conversion.folders import is_hugging_face
from regard_lab.conversion.pretrained import CONFIG_FILE, read_json
from regard_lab.models import LanguageModel, TextEncoder, TranslationTransformer
from regard_lab.models.storage import kind_and_config
from regard_lab.seeing.architecture import (
    DrawnModel,
    architecture_of,
    architecture_of_hugging_face,
    draw_svg,
    public_links,
    to_record,
    to_text,
)

CONFIGS = {
    model.KIND: model.Config for model in (TranslationTransformer, LanguageModel, TextEncoder)
}


def show_model(folder: Path, svg: Path | None, as_json: bool) -> None:
    """Print the drawing of a model as text or as JSON, or write it as an SVG."""
    if svg is not None:
        check_name(svg)
        if svg.suffix.lower() != ".svg":
            raise ArgumentError(
                f"the drawing of a model is an SVG; give {svg} a name that ends in .svg"
            )
    architecture = read_architecture(folder)
    if svg is not None:
        replace_file(svg, draw_svg(architecture, public_links()).encode())
    if as_json:
        record = {"model": str(folder), **to_record(architecture)}
        if svg is not None:
            record["svg"] = str(svg)
        out_json(record)
    elif svg is not None:
        out(
            f"{folder} drawn in {svg}; in a browser each box says its lesson and class when pointed at"
        )
    else:
        out_lines(to_text(architecture, out_width()))


def read_architecture(folder: Path) -> DrawnModel:
    """The architecture of a model of regard or of Hugging Face.

    Raises:
        UnsupportedError: a model without layers of attention and feed-forward, or one that is not known here.
        NotFoundError: there is no model in the folder.
        CheckpointError: its config is damaged.
    """
    if is_hugging_face(folder):
        return architecture_of_hugging_face(read_json(folder / CONFIG_FILE))
    kind, settings = kind_and_config(folder)
    if kind not in CONFIGS:
        raise UnsupportedError(
            f"{folder} is a {kind}, which has no layers of attention and feed-forward; this draws {', '.join(CONFIGS)}"
        )
    try:
        config = CONFIGS[kind].from_dict(settings)
    except ArgumentError as error:
        raise CheckpointError(f"{folder} holds a config that is not valid: {error}") from error
    return architecture_of(config)
