"""`regard export`: a trained model as files that other runtimes run."""

from pathlib import Path
from typing import Annotated

from typer import Option

from regard.arguments import count_of, one_of
from regard.errors import ArgumentError
from regard_lab.cli.console import check_name, counting, note, out
from regard_lab.cli.options import Run
from regard_lab.conversion.serving import COMPARED, TARGETS, WEIGHTS, export_translator
from regard_lab.models.exporting import OPSET, export_onnx


def export(
    run: Run,
    to: Annotated[
        str | None,
        Option(
            metavar="|".join(TARGETS),
            help="Write a translator as a folder, which translates without regard.",
        ),
    ] = None,
    out_folder: Annotated[
        Path | None, Option("--out", "-o", metavar="FOLDER", help="With --to: a new folder.")
    ] = None,
    weights: Annotated[
        str | None,
        Option(
            metavar="|".join(WEIGHTS),
            help="With --to ctranslate2: how weights are stored [default: float32].",
        ),
    ] = None,
    replace: Annotated[
        bool, Option("--replace", help="With --to: write over an earlier export.")
    ] = False,
    onnx: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Write the model alone, of any kind, as an ONNX file; its name ends in .onnx.",
        ),
    ] = None,
    opset: Annotated[
        int | None,
        Option(
            min=18,
            help=f"With --onnx: version of ONNX's operations; 23 has one for attention [default: {OPSET}].",
        ),
    ] = None,
) -> None:
    """Write a trained model as files that other runtimes run."""
    _check_together(run, to, out_folder, weights, replace, onnx, opset)
    if onnx is not None:
        _export_file(run, onnx, OPSET if opset is None else opset)
    if to is not None and out_folder is not None:
        stored = WEIGHTS[0] if weights is None else weights
        _export_folder(run, out_folder, to, stored, replace)


def _check_together(
    run: Path,
    to: str | None,
    out_folder: Path | None,
    weights: str | None,
    replace: bool,
    onnx: Path | None,
    opset: int | None,
) -> None:
    if (to is None) == (onnx is None):
        raise ArgumentError(
            f"to export {run}, give one of --to and --onnx: --to ctranslate2 --out FOLDER for a translator, or --onnx "
            f"FILE for the model alone"
        )
    if to is not None:
        one_of("to", to, TARGETS)
    of_folders = {"--out": out_folder, "--weights": weights, "--replace": replace or None}
    of_files = {"--opset": opset}
    others = of_folders if to is None else of_files
    for option, value in others.items():
        if value is not None:
            needed = "--to" if to is None else "--onnx"
            raise ArgumentError(f"{option} goes with {needed}; leave it out")
    if to is not None and out_folder is None:
        raise ArgumentError(f"--to {to} writes a folder; name it: --out FOLDER")


def _export_file(run: Path, path: Path, opset: int) -> None:
    check_name(path, "file")
    with counting("exporting"):
        difference = export_onnx(run, path, opset)
    compared = "onnxruntime is not installed, so it was not run"
    if difference is not None:
        compared = f"outputs of onnxruntime differ by at most {difference:.1e}"
    out(f"{path}: {compared}")


def _export_folder(run: Path, folder: Path, to: str, weights: str, replace: bool) -> None:
    comparisons = 1 if weights == WEIGHTS[0] else 2
    with counting("compared texts", comparisons * COMPARED) as progress:
        exported = export_translator(
            run, folder, to=to, weights=weights, replace=replace, progress=progress
        )
    drawn = exported.exact.texts - exported.exact.from_test
    if drawn:
        note(
            f"the run has {count_of(exported.exact.from_test, 'test sentences')}, so "
            f"{count_of(drawn, 'texts')} of drawn ids were compared too"
        )
    if weights != WEIGHTS[0]:
        note(f"in float32, {exported.exact.sentence()}")
    out(
        f"{folder}: {exported.size / 2**20:.1f} MiB for {to}, {weights}; {exported.written.sentence()}"
    )
    note(f"{folder}/README.md says how to use it")
