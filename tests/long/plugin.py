"""A pytest plugin: tests in random order with other random numbers, memory that holds NaN, and steps counted."""

import os
import random
from collections.abc import Iterator

import pytest
import torch
from hypothesis.stateful import RuleBasedStateMachine

STEPS = 0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shuffle", type=int, help="the seed of the order of files and tests, and of torch"
    )
    parser.addoption(
        "--poison",
        action="store_true",
        help="memory that nobody has written holds NaN, in every test",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--poison"):
        os.environ["POISONED_MEMORY"] = "1"  # for processes that tests start
    checked = RuleBasedStateMachine.check_invariants

    def counted(machine: RuleBasedStateMachine, *arguments: object, **named: object) -> None:
        global STEPS
        STEPS += 1
        checked(machine, *arguments, **named)

    RuleBasedStateMachine.check_invariants = counted  # called once after each step


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Draw an order of files and of the tests of each: what a file's tests share is made once."""
    seed = config.getoption("--shuffle")
    if seed is None:
        return
    draw = random.Random(seed)
    places = {path: draw.random() for path in sorted({item.path for item in items})}
    items.sort(key=lambda item: (places[item.path], draw.random()))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    seed = item.config.getoption("--shuffle")
    if seed is not None:
        torch.manual_seed(seed)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if not item.config.getoption("--poison"):
        return (yield)
    # it fills memory; what is not deterministic on a GPU only warns
    torch.set_deterministic_debug_mode("warn")
    try:
        return (yield)
    finally:
        torch.set_deterministic_debug_mode("default")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if STEPS:
        terminalreporter.write_line(f"steps of state machines: {STEPS}")
