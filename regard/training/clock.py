"""Time spent on a run, earlier sessions included, and how much is left."""

from time import monotonic, process_time

_MEMORY = 0.95  # weight of the past in the running average of a step's seconds


class Clock:
    """Seconds of this run on the wall and on the processor, with those of the sessions before.

    >>> Clock(wall_before=60.0, cpu_before=50.0).wall() >= 60.0
    True
    """

    def __init__(self, wall_before: float = 0.0, cpu_before: float = 0.0) -> None:
        self._wall_start = monotonic() - wall_before
        self._cpu_start = process_time() - cpu_before
        self._last_tick = monotonic()
        self._seconds = self._tokens = self._weight = 0.0

    def wall(self) -> float:
        """Seconds on the wall clock."""
        return monotonic() - self._wall_start

    def cpu(self) -> float:
        """Seconds on the processor, summed over this process's threads."""
        return process_time() - self._cpu_start

    def restart_step(self) -> None:
        """What came since the last step (a validation, a save) is no part of the next one."""
        self._last_tick = monotonic()

    def step_done(self, tokens: int) -> None:
        """Note one step of so many tokens for the two estimates below."""
        now = monotonic()
        self._seconds = _MEMORY * self._seconds + (now - self._last_tick)
        self._tokens = _MEMORY * self._tokens + tokens
        self._weight = _MEMORY * self._weight + 1.0
        self._last_tick = now

    def tokens_per_second(self) -> float:
        """Over the last twenty steps or so."""
        return self._tokens / max(self._seconds, 1e-9)

    def seconds_left(self, steps_left: int, minutes: float | None) -> float:
        """Until the steps or the minutes are used up, whichever comes first."""
        by_steps = steps_left * self._seconds / max(self._weight, 1.0)
        return by_steps if minutes is None else max(0.0, min(by_steps, 60 * minutes - self.wall()))
