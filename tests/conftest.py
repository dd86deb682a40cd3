"""Every test starts from the same random state, and a failing example is found again by running the test again."""

import gc
import logging
import os
import signal
from collections.abc import Callable, Generator, Iterator

import pytest
import torch
from each_value import mark_repetitions
from hypothesis import HealthCheck, settings

from regard.functional.kept import PLANS

settings.register_profile(
    "regard",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
# The long tier's: other examples for each `--hypothesis-seed`.
settings.register_profile(
    "long", settings.get_profile("regard"), derandomize=False, print_blob=True
)
# The long tier's for metamorphic laws: as many examples of each as the goal asks for, see tests/law_examples.py.
settings.register_profile("laws", settings.get_profile("long"), max_examples=1_000)
settings.load_profile("regard")
# Tensors here are small, and threads that wait for each other are slower than one; OMP_NUM_THREADS asks for more.
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
# Programs that tests start have as many.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# pyproject.toml turns off that pytest listens to loggers, which nothing here reads: it walked through all of them six
# times for each test. As with it, no logger writes to stderr because nobody listens.
logging.getLogger().addHandler(logging.NullHandler())

# PyTorch's compiler empties the caches of the processor after each graph, to report how long its guards take: a tenth
# of the CPU time of tests that compile, and other processes find their caches empty as well.
torch._C._dynamo.guards.profile_guard_manager = lambda *_: 0.0

# A shell starts programs in the background with Ctrl-C ignored, and tests of interruptions need it.
signal.signal(signal.SIGINT, signal.default_int_handler)

POISONED = {"contracts", "backends", "caches"}
# Tests of tools, of benchmarks and of other tests: `make check` and `make test-long` run them, `make test` does not.
ONCE = (
    "tests/long/",
    "tests/regard_lab/bench/",
    "tests/regard_lab/test_found_faults.py",
    "tests/regard/test_machines.py",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.relative_to(config.rootpath).as_posix().startswith(ONCE):
            item.add_marker(pytest.mark.once)
    mark_repetitions(items)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Test items live to the end, so garbage is not searched for among them: that took a tenth of the CPU time.

    In tests it is searched for a thirtieth as often as by default, since what they import lives to the end as well.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(5_000, 20, 20)
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Each process gets a part of the suite in order, so that what a file makes once is rarely made twice."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getvalue("dist") == "load" else None


_seed = torch.manual_seed
if not torch.accelerator.is_available():
    # A thousandth of the time: torch.manual_seed keeps the stack of its caller for each device.
    _seed = torch.default_generator.manual_seed


@pytest.fixture(autouse=True)
def _same_random_numbers_in_every_test():
    _seed(0)


@pytest.fixture
def fresh_plans() -> Iterator[Callable[[], None]]:
    """Forgets all plans before and after a test that changes what planning reads, and in between when it is called."""
    PLANS.forget()
    yield PLANS.forget
    PLANS.forget()


@pytest.fixture(autouse=True)
def _fresh_memory_is_poisoned(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where numbers are computed, memory that nobody has written holds NaN, or the largest integer there is."""
    if not POISONED & set(request.path.parts):
        yield
        return
    torch.set_deterministic_debug_mode("error")  # which fills it, see torch.utils.deterministic
    yield
    torch.set_deterministic_debug_mode("default")
