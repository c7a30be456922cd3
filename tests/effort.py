"""How hard a test that samples tries: fully, or a fifth of it in the quick run (`pytest --quick`).

The choice is a profile of Hypothesis, which tests/conftest.py loads before it collects: `@given` follows it by itself,
and what counts its own tries asks here. A sampled test must hold for any number of tries.
"""

from hypothesis import HealthCheck, settings

QUICK = "quick"
USUAL = "usual"
QUICK_PART = 5  # the quick run tries one in so many

# A busy machine is slow, which is no failure of a test: neither an example nor its making has a deadline.
settings.register_profile(USUAL, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(QUICK, settings.get_profile(USUAL), max_examples=20)


def tries(usual: int) -> int:
    """This many, or a fifth of it, but at least two."""
    return max(2, usual // QUICK_PART) if is_quick() else usual


def stride() -> int:
    """For sweeps over everything: every one, or every fifth."""
    return QUICK_PART if is_quick() else 1


def is_quick() -> bool:
    return settings.get_current_profile_name() == QUICK
