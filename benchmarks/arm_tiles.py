"""Estimates how fast the inner tiles of the kernel are on 64-bit Arm, from their instructions: nothing runs.

python benchmarks/arm_tiles.py [--mca PROGRAM]

Zig and GCC compile the kernel for Arm into assembly. LLVM's program llvm-mca simulates the loop of the largest tile of
scores with its models of four processors, as if all numbers were in the first cache. LLVM 19 has these models. Writes
a report into results/.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import RESULTS, heading, options
from regard.backends.native.build import COMMON, SOURCE, Target, architecture_of
from regard_lab.text.writing import markdown_table

REPORT = RESULTS / "native_arm_estimated.md"
ARM = Target("linux", "aarch64")
COMPILERS = {
    "Zig": [sys.executable, "-m", "ziglang", "c++", "-target", ARM.of_zig],
    "GCC": ["aarch64-linux-gnu-g++"],
}
KERNELS = {"float32": "neon", "bfloat16": "bf16_neon", "float64": "wide"}
# Processors by their names in LLVM, with the most vector products that a model begins in a cycle.
PROCESSORS = {
    "neoverse-n1": ("Neoverse N1", 2),
    "neoverse-v1": ("Neoverse V1", 4),
    "neoverse-v2": ("Neoverse V2", 4),
    "apple-m1": ("Apple M1", 3),
}
FUNCTION = re.compile(r"(_Z\w+):")
LABEL = re.compile(r"(\.L\w+):")
JUMP = re.compile(r"(?:b\.?[a-z]{2}|cbn?z\t\w+,|tbn?z\t\w+, *#?\w+,)\s+(\.L\w+)")
TILE = "score_registers"
PRODUCT = "fmla"
TURNS = 500


@dataclass(frozen=True)
class Loop:
    """The instructions between a label and the jump back to it."""

    function: str
    instructions: tuple[str, ...]

    @property
    def products(self) -> int:
        return sum(one.startswith(PRODUCT) for one in self.instructions)


def assembly(compiler: list[str], kernel: str) -> str:
    """The kernel for Arm as this compiler writes it, without notes for debuggers."""
    flags = (*COMMON, *architecture_of(ARM.machine).kernels[kernel], "-w", "-g0")
    with tempfile.TemporaryDirectory() as room:
        path = Path(room, "kernel.s")
        words = ("-S", str(SOURCE / "kernel.cpp"), "-o", str(path))
        subprocess.run([*compiler, *flags, *words], check=True)
        return path.read_text()


def loops(text: str) -> Iterator[Loop]:
    """The loops without an inner loop."""
    function = ""
    instructions: list[str] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if found := FUNCTION.match(line):
            function = found[1]
            instructions = []
            labels = {}
        elif found := LABEL.match(line):
            labels[found[1]] = len(instructions)
        elif re.match(r"\t[a-z]", line):
            instruction = line.partition("//")[0].strip()
            instructions.append(instruction)
            jump = JUMP.fullmatch(instruction)
            if jump and jump[1] in labels:
                yield Loop(function, tuple(instructions[labels.pop(jump[1]) :]))


def inner_tile(text: str) -> Loop:
    """The loop of the tile of scores with the most products; of those that also prefetch, the short way without."""
    of_scores = [loop for loop in loops(text) if TILE in loop.function]
    most = max(loop.products for loop in of_scores)
    largest = [loop for loop in of_scores if loop.products == most]
    return min(largest, key=lambda loop: len(loop.instructions))


def cycles(loop: Loop, processor: str, program: str) -> float:
    """Cycles that one turn of the loop takes in LLVM's model of this processor."""
    command = [program, "-mtriple=aarch64", f"-mcpu={processor}", f"-iterations={TURNS}"]
    text = "\n".join(loop.instructions)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    found = re.search(r"Total Cycles: +(\d+)", done.stdout)
    assert found is not None, done.stdout
    return int(found[1]) / TURNS


def version_of(program: str) -> str:
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"LLVM version (\S+)", done.stdout)
    assert found is not None, done.stdout
    return found[1]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--mca", default="llvm-mca", help="the program (default: %(default)s)")
    program = parser.parse_args().mca
    if shutil.which(program) is None:
        raise SystemExit(f"{program} is not installed; it comes with LLVM (Debian: llvm-19)")
    rows = []
    for dtype, kernel in KERNELS.items():
        lanes = 2 if dtype == "float64" else 4
        for compiler, command in COMPILERS.items():
            loop = inner_tile(assembly(command, kernel))
            for processor, (name, most) in PROCESSORS.items():
                by_cycle = loop.products / cycles(loop, processor, program)
                rows.append(
                    [
                        dtype,
                        compiler,
                        name,
                        len(loop.instructions),
                        loop.products,
                        f"{by_cycle:.2f} of {most}",
                        f"{2 * lanes * by_cycle:.1f}",
                    ]
                )
    columns = ("dtype", "compiler", "model of", "instructions", "products", "products a cycle")
    lines = heading(
        "The inner tiles of the kernel on 64-bit Arm: an estimate",
        f", llvm-mca of LLVM {version_of(program)}",
        "python benchmarks/arm_tiles.py",
    )
    lines += [
        "**Nothing ran on an Arm processor.** LLVM's program llvm-mca read the instructions of the loop of the largest "
        "tile of scores and counted the cycles of a turn in its models of four processors, with all numbers in the "
        "first cache and every jump foreseen. Memory, the softmax and the ends of rows take time besides, so a call is "
        "slower. For the M1, LLVM has the model of an older processor of Apple, which begins 3 products a cycle.",
        "",
        "A product is one `fmla` instruction: 4 products and sums in float32, 2 in float64. Numbers in bfloat16 are "
        "widened to float32 before the loop, whose instructions are the same. The wheel for Linux on Arm is built by "
        "Zig.",
        "",
        *markdown_table([*columns, "FLOP a cycle"], rows),
    ]
    REPORT.write_text("\n".join(lines) + "\n", "utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
