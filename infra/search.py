"""A classical optimiser (Optuna's TPE) that names one knob and one value a step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from infra.errors import BadInput

Value = bool | int | float | str
MAX_TRIES = 32


class KnobSpace(BaseModel):
    """Where one knob may go: a range of numbers, or choices."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    knob: str
    kind: Literal["int", "float", "choice"]
    current: Value | None = Field(default=None, description="not suggested again")
    low: float | None = None
    high: float | None = None
    step: float | None = Field(default=None, gt=0)
    choices: tuple[Value, ...] = ()

    @model_validator(mode="after")
    def _is_a_space(self) -> KnobSpace:
        if self.kind == "choice":
            if not self.choices:
                raise ValueError(f"{self.knob} has no choices")
        elif self.low is None or self.high is None or not self.low <= self.high:
            raise ValueError(f"{self.knob} has no range: {self.low} to {self.high}")
        elif self.kind == "int" and _grid(self)[0] > _grid(self)[1]:
            raise ValueError(f"{self.knob} has no whole multiple of its step in {self.low} to {self.high}")
        return self


class Observation(BaseModel):
    """A measured single-knob trial and its score; higher is better."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    knob: str
    value: Value
    score: float


def suggest(history: Sequence[Observation], space: Sequence[KnobSpace], seed: int) -> tuple[str, Value] | None:
    """The next (knob, value) to measure; None when nothing new was found in bounded tries.

    Observations outside the space (a knob or value that is no longer allowed) teach nothing and are left out.

    Raises:
        BadInput: a score that is not finite. Optuna would take +inf for the best of all.
    """
    import optuna

    for seen in history:
        if not math.isfinite(seen.score):
            raise BadInput(
                f"the score of {seen.knob}={seen.value} is {seen.score}, which no measurement can be",
                remedy="Leave trials without a finite score out of the search",
            )
    tried = {(seen.knob, seen.value) for seen in history} | {(k.knob, k.current) for k in space}
    # TPE finds a rarely tried knob promising for ever, so one with nothing new left must leave the space.
    space = [knob for knob in space if _has_untried(knob, tried)]
    if not space:
        return None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    by_name = {knob.knob: knob for knob in space}
    which = optuna.distributions.CategoricalDistribution(sorted(by_name))
    past = [seen for seen in history if seen.knob in by_name and _inside(by_name[seen.knob], seen.value)]
    for attempt in range(MAX_TRIES):
        sampler = optuna.samplers.TPESampler(seed=seed + attempt, n_startup_trials=min(5, 1 + len(space)))
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for seen in past:
            study.add_trial(
                optuna.trial.create_trial(
                    params={"knob": seen.knob, seen.knob: seen.value},
                    distributions={"knob": which, seen.knob: _distribution(by_name[seen.knob])},
                    value=seen.score,
                )
            )
        trial = study.ask()
        name = trial.suggest_categorical("knob", sorted(by_name))
        value = _ask(trial, by_name[name])
        if by_name[name].kind == "choice" and (name, value) in tried:
            value = next(choice for choice in by_name[name].choices if (name, choice) not in tried)
        if (name, value) not in tried:
            return name, value
    return None


def _has_untried(space: KnobSpace, tried: set[tuple[str, Value | None]]) -> bool:
    if space.kind == "choice":
        return any((space.knob, choice) not in tried for choice in space.choices)
    if space.kind == "float":
        return space.low != space.high or (space.knob, space.low) not in tried
    low, high, step = _grid(space)
    return any((space.knob, value) not in tried for value in range(low, high + 1, step))


def _inside(space: KnobSpace, value: Value) -> bool:
    if space.kind == "choice":
        return value in space.choices
    if isinstance(value, str | bool) or space.low is None or space.high is None:
        return False
    if space.kind == "int":
        low, high, step = _grid(space)
        return low <= value <= high and (value - low) % step == 0
    on_grid = space.step is None or math.isclose((value - space.low) / space.step % 1, 0, abs_tol=1e-9)
    return space.low <= value <= space.high and on_grid


def _distribution(space: KnobSpace) -> Any:
    import optuna

    if space.kind == "choice":
        return optuna.distributions.CategoricalDistribution(space.choices)
    if space.kind == "int":
        low, high, step = _grid(space)
        return optuna.distributions.IntDistribution(low, high, step=step)
    return optuna.distributions.FloatDistribution(space.low, space.high, step=space.step)


def _grid(space: KnobSpace) -> tuple[int, int, int]:
    """Low, high and step in whole numbers; the ends are the outermost multiples of the step inside the range."""
    step = max(1, int(space.step or 1))
    return math.ceil((space.low or 0) / step) * step, math.floor((space.high or 0) / step) * step, step


def _ask(trial: Any, space: KnobSpace) -> Value:
    value: Value
    if space.kind == "choice":
        value = trial.suggest_categorical(space.knob, space.choices)
    elif space.kind == "int":
        low, high, step = _grid(space)
        value = trial.suggest_int(space.knob, low, high, step=step)
    else:
        value = trial.suggest_float(space.knob, space.low, space.high, step=space.step)
    return value
