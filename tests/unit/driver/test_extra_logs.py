"""What a step's log has of its samples' logs."""

from types import SimpleNamespace

import pytest

from openrlhf_sagc.driver.extra_logs import step_logs
from openrlhf_sagc.engine.answers import MOST_NAMES


def samples_of(*logs):
    return [SimpleNamespace(logs=each) for each in logs]


def test_a_mean_is_over_the_samples_that_have_the_name():
    samples = samples_of({"solved": 1.0, "turns": 3.0}, {}, {"solved": 0.0}, {"turns": 5.0, "a/b": 7.0})
    assert step_logs(samples) == ({"solved": 0.5, "turns": 4.0, "a/b": 7.0}, {})


@pytest.mark.parametrize(
    "name", ["reward", "kl", "timing/ppo_train", "sagc/group", "rollout/mine", "generated_samples"]
)
def test_a_name_of_the_runs_own_log_is_logged_below_another(name):
    logs, warnings = step_logs(samples_of({name: 2.0, "rewarding": 1.0, "rollout": 3.0}))
    assert logs == {f"extra_logs/{name}": 2.0, "rewarding": 1.0, "rollout": 3.0}
    line = f"extra_logs['{name}'] is a name of the run's own log: it is logged as extra_logs/{name}"
    assert list(warnings.values()) == [line]


def test_of_too_many_names_those_of_the_most_samples_are_logged():
    shared = {f"shared {i}": 1.0 for i in range(10)}
    logs, warnings = step_logs(samples_of(*({**shared, **{f"{n} {i}": 0.0 for i in range(90)}} for n in range(10))))
    assert len(logs) == MOST_NAMES and shared.items() <= logs.items()
    assert list(warnings.values()) == [
        f"the samples of a step have 910 names in their extra_logs: the {MOST_NAMES} of the most samples are logged"
    ]
