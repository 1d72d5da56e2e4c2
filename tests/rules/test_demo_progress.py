from __future__ import annotations

import pytest

from deployments.demo.children import worth_showing
from deployments.demo.progress import remaining_s

PARTS = (("a", 120.0), ("b", 60.0), ("c", 20.0))


@pytest.mark.parametrize(
    ("left_s", "number", "in_part_s", "elapsed_s"),
    [
        (200.0, 0, 0.0, 0.0),
        (140.0, 0, 60.0, 60.0),
        (80.0, 1, 0.0, 120.0),
        (160.0, 1, 0.0, 240.0),  # twice as slow so far: twice as long to go
        (64.0, 1, 0.0, 30.0),  # parts that were quick promise little: never less than four fifths
        (23.0, 1, 500.0, 620.0),  # a part that overruns never promises less than a twentieth of itself
    ],
)
def test_the_estimate_follows_the_pace_so_far(left_s: float, number: int, in_part_s: float, elapsed_s: float) -> None:
    assert remaining_s(PARTS, number, in_part_s, elapsed_s) == pytest.approx(left_s)


@pytest.mark.parametrize(
    ("shown", "line"),
    [
        ("hello", "03:32:48.218 | INFO    | Task run 'trial a=1-53b' - hello"),
        ("hello", '03:32:48.218 | INFO    | Task run "A/A: the sandbox\'s noise floor-53b" - hello'),
        ("WARNING: look", "03:32:48.218 | WARNING | Flow run 'x' - look"),
        (None, "03:31:37.577 | INFO    | Task run 'pin criteria-eb7' - Finished in state Completed()"),
        (None, "03:31:36.909 | INFO    | great_expectations.x - Created temporary directory"),
        (None, "Traceback (most recent call last):"),
    ],
)
def test_only_what_a_person_wants_to_see_is_shown(shown: str | None, line: str) -> None:
    assert worth_showing(line) == shown
