"""Turns are taken by everyone, in an order that changes, and as often as the pace says."""

from regard_lab.bench.measuring import Pace, take_turns, threads

STEADY = Pace(rounds=6, slow_rounds=2, slow=10.0, shortest=0.0)


class Runners:
    """Calls that note who ran; a clock that moves by what each costs."""

    def __init__(self, **costs):
        self.now, self.order, self.costs = 0.0, [], costs
        self.calls = {name: lambda name=name: self.run(name) for name in costs}

    def run(self, name):
        self.order.append(name)
        self.now += self.costs[name]

    def clock(self):
        return self.now


def test_contenders_take_turns_and_each_begins_a_round():
    runners = Runners(a=1.0, b=2.0, c=3.0)
    times = take_turns(runners.calls, runners.clock, STEADY)
    timed = "".join(runners.order[6:])  # two calls of each warm up
    assert timed == "abcbcacab" * 2
    assert {name: timing.samples for name, timing in times.items()} == {
        "a": (1.0,) * 6,
        "b": (2.0,) * 6,
        "c": (3.0,) * 6,
    }


def test_short_calls_are_repeated_and_the_time_is_of_one():
    runners = Runners(tiny=1e-3)
    times = take_turns(runners.calls, runners.clock, Pace(rounds=2, shortest=0.01))
    assert len(runners.order) > 2 + 2 * 5
    assert all(abs(sample - 1e-3) < 1e-9 for sample in times["tiny"].samples)


def test_slow_calls_have_fewer_turns_spread_over_the_rounds():
    runners = Runners(fast=1.0, slow=2.0)
    times = take_turns(
        runners.calls, runners.clock, Pace(rounds=6, slow_rounds=2, slow=1.5, shortest=0.0)
    )
    assert (len(times["fast"].samples), len(times["slow"].samples)) == (6, 2)
    rounds = "".join(name[0] for name in runners.order[4:])
    assert rounds.replace("s", "") == "ffffff"
    assert rounds.index("s") not in (0, len(rounds) - 1)


def test_threads_are_put_back():
    import torch

    before = torch.get_num_threads()
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
