"""The time of a training: what it has used, how fast it is, and what is left."""

from __future__ import annotations

from time import monotonic, process_time


class TrainingClock:
    """Seconds of this run on the wall and on the processor, with those of the sessions before.

    >>> TrainingClock(wall_before=60.0, cpu_before=50.0).wall() >= 60.0
    True
    """

    def __init__(self, wall_before: float = 0.0, cpu_before: float = 0.0) -> None:
        self._wall_start = monotonic() - wall_before
        self._cpu_start = process_time() - cpu_before
        self._last_tick = monotonic()
        # Averaged over the last twenty steps or so.
        self._seconds = 0.0
        self._tokens = 0.0
        # Over two hundred, for the seconds left, which people read.
        self._long_seconds = 0.0
        self._long_steps = 0.0

    def wall(self) -> float:
        """Seconds on the wall clock."""
        return monotonic() - self._wall_start

    def cpu(self) -> float:
        """Seconds on the processor, summed over this process's threads."""
        return process_time() - self._cpu_start

    def restart_step(self) -> None:
        """Begin a step: the time since the last one (a validation, a save) does not count."""
        self._last_tick = monotonic()

    def step_done(self, tokens: int) -> None:
        """Note the tokens of one step for the two estimates below."""
        seconds = monotonic() - self._last_tick
        self._seconds = 0.95 * self._seconds + seconds
        self._tokens = 0.95 * self._tokens + tokens
        self._long_seconds = 0.995 * self._long_seconds + seconds
        self._long_steps = 0.995 * self._long_steps + 1.0
        self.restart_step()

    def tokens_per_second(self) -> float:
        """Over the last twenty steps or so."""
        return self._tokens / max(self._seconds, 1e-9)

    def seconds_left(self, steps_left: int | None, minutes: float | None) -> float | None:
        """Until the steps or the minutes are used up, whichever comes first; None if neither is known."""
        ends: list[float] = []
        if steps_left is not None:
            ends.append(steps_left * self._long_seconds / max(self._long_steps, 1.0))
        if minutes is not None:
            ends.append(max(0.0, 60 * minutes - self.wall()))
        return min(ends, default=None)
