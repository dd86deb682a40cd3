"""How many examples a law gets: few every day, and as many as its goal asks for in the long tier."""

from hypothesis import HealthCheck, settings


def law(everyday: int) -> settings:
    """Settings of a law: `everyday` examples, or as many as a profile asks for that has more than the usual one.

    `--hypothesis-profile=laws` is loaded before the laws are imported. Of a law for a backend many drawn calls are
    refused, and the fixture that cuts small blocks does the same for every example.
    """
    profile = settings.default
    usual = settings.get_profile("regard")
    assert profile is not None
    quiet = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much]
    is_long = profile.max_examples > usual.max_examples
    number = profile.max_examples if is_long else everyday
    return settings(max_examples=number, deadline=None, suppress_health_check=quiet)
