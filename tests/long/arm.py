"""The kernel on 64-bit Arm, emulated, as a run of the long tier: `tests.arm` has the work."""

from tests.arm.comparing import missing, work

__all__ = ["missing", "work"]
