"""The runs of the long tier, by name."""

from .commands import OPTIONS, names
from .pytests import FOLDERS, SLOW, law_names
from .running import LongRun

FILES = 138  # hostile files; a test compares this with how many there are


def _tests(name: str, claim: str, *paths: str) -> LongRun:
    """A run of tests: a case for each argument."""
    return LongRun(name, claim, "parts of the suite", len(paths), 1, "pytests.tests", paths)


SECOND = "tests/regard/contracts/test_second_derivatives.py"
EVERY = (
    LongRun(
        "oracle",
        "random calls equal formulas in float64, values and gradients",
        "calls",
        34_000,
        200,
        "oracle.work",
    ),
    LongRun(
        "examples", "properties hold for hypothesis' examples", "seeds", 34, 1, "pytests.examples"
    ),
    _tests("second", "gradgradcheck finds the second derivatives right", f"-m|slow|{SECOND}"),
    LongRun(
        "laws",
        "metamorphic laws hold for every backend, pattern and mechanism",
        "laws",
        len(law_names()),
        1,
        "pytests.laws",
    ),
    LongRun(
        "poison",
        "the suite passes where memory that nobody wrote holds NaN",
        "parts of the suite",
        len(FOLDERS),
        1,
        "pytests.poisoned",
    ),
    _tests(
        "slow",
        "the slow tests that no other run has pass",
        *(f"-m|slow|{path}" for path in SLOW),
        "-m|slow and each_value|tests",
    ),
    _tests(
        "bits",
        "outputs are equal bit by bit, and negative controls fail",
        "tests/regard/native/test_native_bits.py",
        "-m|slow|tests/regard/native/test_native_bits.py",
    ),
    LongRun(
        "arm",
        "the kernel on emulated 64-bit Arm gives the formula's numbers and the bits of x86-64",
        "calls",
        2_227,
        212,
        "arm.work",
        needs="arm.missing",
    ),
    _tests("dropout", "dropout keeps what its law says", "tests/regard/backends/test_dropout.py"),
    _tests(
        "memory",
        "peak memory is linear where it is documented so",
        "tests/regard/contracts/test_memory.py",
        "tests/regard/test_plans_of_any_size.py",
        "tests/regard/backends/test_streamed.py",
    ),
    _tests(
        "compiled",
        "compiled and exported calls are right at unseen lengths",
        "tests/regard/test_compiled.py",
        "-m|slow|tests/regard/test_compiled.py",
    ),
    _tests(
        "processes",
        "two and four processes equal one",
        "tests/regard/several_processes",
        "-m|slow|tests/regard/several_processes",
        "-m|slow|tests/regard_lab/several_processes",
    ),
    _tests("offsets", "offsets beyond 2**31 are right", "tests/regard/native/test_native_views.py"),
    LongRun(
        "flips",
        "a flipped bit of any file of a run is refused, or changes nothing",
        "flips",
        10_000,
        500,
        "damage.flips",
    ),
    LongRun(
        "hostile",
        "hostile files are refused; nothing runs, and nothing outside is opened",
        "files",
        FILES,
        46,
        "hostile.work",
    ),
    LongRun(
        "kills", "a killed training continues to the same bits", "kills", 1_000, 25, "faults.kills"
    ),
    LongRun(
        "faults",
        "a fault of disk or memory leaves the checkpoint before it",
        "faults",
        280,
        28,
        "faults.work",
    ),
    _tests(
        "resume",
        "a resumed training ends in the same bits",
        "tests/regard_lab/training/test_resume.py",
        "tests/regard_lab/training/test_engine.py",
    ),
    _tests(
        "conversion",
        "converted models give the same logits, and every key is accounted for",
        "tests/regard_lab/conversion",
    ),
    _tests(
        "server",
        "fuzzed requests are refused or explained",
        "-m|slow|tests/regard_lab/explorer/test_explorer_server.py",
    ),
    _tests(
        "explorer",
        "hostile text in the explorer stays text",
        "tests/regard_lab/explorer/test_explorer_hostile.py",
    ),
    LongRun(
        "commands",
        "hostile invocations end in a sentence and a documented code",
        "halves of a command's invocations",
        2 * len(names()),
        7,
        "commands.work",
    ),
    LongRun(
        "options",
        "40 hostile invocations of each option and reader end in a sentence, none silent for 10 seconds",
        "options and readers",
        len(OPTIONS),
        1,
        "commands.options",
    ),
    LongRun(
        "mutants",
        "a small change of the code makes a test fail",
        "mutants",
        300,
        11,
        "mutants.work",
    ),
    LongRun(
        "elsewhere",
        "the suite passes in random order, as on other processors, with 1, 2 and 4 threads, and beside "
        "8 busy processes",
        "suites",
        20,
        1,
        "pytests.elsewhere",
    ),
    LongRun(
        "texts",
        "random texts are patterns that read back, or are refused by a sentence",
        "texts",
        50_000,
        5_000,
        "texts.work",
    ),
)
RUNS: dict[str, LongRun] = {run.name: run for run in EVERY}
