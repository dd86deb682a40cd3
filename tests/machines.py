"""The suite as on other machines: python tests/machines.py [--only NAME ...] [--out FOLDER] [pytest's arguments]

One line for each setting, with what pytest said last; the whole of what it said lies in FOLDER. Goes on after a
failure, and leaves with 1 at the end if there was one.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUSY = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): pass"  # ends with this script, however that ends

# PyTorch chooses its own loops by ATEN_CPU_CAPABILITY; MKL and oneDNN multiply matrices and have names of their own.
PLAIN = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"}
AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}
SETTINGS: dict[str, dict[str, str]] = {
    "native": {},
    "avx2": AVX2,
    "plain": PLAIN,
    "threads-1": {"OMP_NUM_THREADS": "1"},
    "threads-2": {"OMP_NUM_THREADS": "2"},
    "threads-4": {"OMP_NUM_THREADS": "4"},
    "busy": {},
}


BUSY_PROCESSES = 8  # beside the suite, on machines with two cores


def environment(name: str) -> dict[str, str]:
    """That of this process, with nothing but the setting's own words about processors and threads."""
    variables = set().union(*SETTINGS.values())
    rest = {key: value for key, value in os.environ.items() if key not in variables}
    return rest | SETTINGS[name]


@contextmanager
def busy_processes(count: int) -> Generator[None]:
    """So many processes that only count beside."""
    running = [
        subprocess.Popen([sys.executable, "-c", BUSY, str(os.getpid())]) for _ in range(count)
    ]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def run(name: str, arguments: list[str], out: Path) -> bool:
    """Run the tests in one setting, tell its line, and say whether all passed."""
    path = out / f"{name}.txt"
    beside = BUSY_PROCESSES if name == "busy" else 0
    command = [sys.executable, "-m", "pytest", "-q", *arguments]
    began = time.monotonic()
    with open(path, "w", encoding="utf-8") as file, busy_processes(beside):
        done = subprocess.run(command, cwd=ROOT, env=environment(name), stdout=file, stderr=file)
    seconds = time.monotonic() - began

    lines = path.read_text(encoding="utf-8").strip().splitlines() or ["said nothing"]
    summary = lines[-1].strip("= ")
    passed = done.returncode == 0
    verdict = "passed" if passed else f"FAILED, see {path}"
    print(f"{name}: {verdict} ({summary}; {seconds:.0f} s)", flush=True)
    return passed


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--only", nargs="+", choices=SETTINGS, default=list(SETTINGS), metavar="NAME"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "machines")
    chosen, arguments = parser.parse_known_args(words)
    chosen.out.mkdir(parents=True, exist_ok=True)
    passed = [run(name, arguments or ["-n", "2"], chosen.out) for name in chosen.only]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
