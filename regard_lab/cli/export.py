"""`regard export`: a trained model as a file that other runtimes run."""

from pathlib import Path
from typing import Annotated

from typer import Option

from regard_lab.cli.console import check_name, counting, out
from regard_lab.cli.options import Run, default
from regard_lab.models.exporting import export_onnx


def export(
    run: Run,
    onnx: Annotated[
        Path, Option(metavar="FILE", help="Write an ONNX file; its name ends in .onnx.")
    ],
    opset: Annotated[
        int, Option(min=18, help="Version of ONNX's operations; 23 has one for attention.")
    ] = default(export_onnx, "opset"),
) -> None:
    """Write a trained model as an ONNX file, which other runtimes run."""
    check_name(onnx, "file")
    with counting("exporting"):
        difference = export_onnx(run, onnx, opset)
    compared = "onnxruntime is not installed, so it was not run"
    if difference is not None:
        compared = f"outputs of onnxruntime differ by at most {difference:.1e}"
    out(f"{onnx}: {compared}")
