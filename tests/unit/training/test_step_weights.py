"""What a step that counts as several plain steps makes of the optimizer."""

from types import SimpleNamespace

import pytest
import torch

from openrlhf_sagc.training.step_weights import StepCounts, _settings, as_plain_steps


def engine_of(parameter, bound=0.0, optimizer=torch.optim.AdamW, **settings):
    """An engine that clips like DeepSpeed's, by the bound in its configuration."""
    optimizer = optimizer([parameter], **settings)
    optimizer.clip_grad = bound
    config = SimpleNamespace(gradient_clipping=bound)
    return SimpleNamespace(optimizer=optimizer, _config=config, global_steps=0, skipped_steps=0)


def step(engine, parameter, gradient, count=1.0):
    with as_plain_steps(engine, count):
        parameter.grad = gradient.clone()
        bound = engine.optimizer.clip_grad
        assert bound == engine._config.gradient_clipping
        if bound:
            torch.nn.utils.clip_grad_norm_([parameter], bound)
        engine.optimizer.step()
    engine.global_steps += 1


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_step_that_counts_as_several_does_to_moments_and_decay_what_they_do(count):
    """Of the same gradient, long after the start of the moments."""
    runs = []
    for steps, weight in ((1, count), (count, 1)):
        parameter = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
        engine = engine_of(parameter, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1)
        for _ in range(800):
            step(engine, parameter, torch.ones(1, dtype=torch.float64))
        for _ in range(steps):
            step(engine, parameter, torch.full((1,), 2.0, dtype=torch.float64), weight)
        state = engine.optimizer.state[parameter]
        runs.append([state["exp_avg"].item(), state["exp_avg_sq"].item(), parameter.item()])
    assert runs[0][:2] == pytest.approx(runs[1][:2], rel=1e-9)
    assert runs[0][2] == pytest.approx(runs[1][2], abs=2e-4 * count)


@pytest.mark.parametrize("second", [0.95, 0.999])
def test_the_start_of_the_moments_is_made_up_for(second):
    """The size of an update, and the decay, as of an Adam that counts what its steps have counted as."""
    old = {"lr": 0.1, "betas": (0.9, second), "eps": 1e-8, "weight_decay": 0.1}
    counted = 0.0
    for step in range(1, 201):
        count = 3.0 if step % 5 == 0 else 0.5
        counted += count
        settings = _settings(old, count, step)

        def size(settings, steps):
            (first, second), rate = settings["betas"], settings["lr"]
            return rate / (1 - first**steps) * (1 - second**steps) ** 0.5

        expected = count * size(old, counted)
        if step >= 5:  # the first frame has its own rule
            assert size(settings, step) == pytest.approx(
                expected, rel=0.3 if step < 20 else 0.1 if step < 100 else 0.01
            )
        assert settings["lr"] * settings["weight_decay"] == pytest.approx(count * 0.01)
        # By epsilon alone a mean of gradients is divided where they are small.
        of_mean = settings["lr"] / settings["eps"] / (1 - settings["betas"][0] ** step)
        assert of_mean == pytest.approx(count * old["lr"] / old["eps"] / (1 - old["betas"][0] ** step))


def test_settings_are_as_before_after_the_step_but_for_the_rate_of_a_schedule():
    parameter = torch.nn.Parameter(torch.ones(1))
    engine = engine_of(parameter, bound=1.0, lr=0.1, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(engine.optimizer, lambda number: 1 / (1 + number))
    engine.lr_scheduler, engine.global_steps = schedule, 1000
    group = engine.optimizer.param_groups[0]
    with as_plain_steps(engine, 8.0):
        assert group["lr"] == pytest.approx(0.8) and group["betas"] == pytest.approx((0.9**8, 0.95**8))
        assert engine.optimizer.clip_grad == engine._config.gradient_clipping == pytest.approx(0.5)
        engine.optimizer.step()
        schedule.step()
    assert group["lr"] == 0.05 and group["betas"] == (0.9, 0.95)
    assert engine.optimizer.clip_grad == engine._config.gradient_clipping == 1.0
    with as_plain_steps(engine, 2.0):  # a step that overflows leaves the schedule
        assert group["lr"] == pytest.approx(0.1)
    assert group["lr"] == 0.05
    with as_plain_steps(engine, 2 / 3):  # the schedule's next rate is that of this very step
        schedule.step()
    assert group["lr"] == pytest.approx(0.1 / 3)


def test_muon_has_the_rate_alone():
    engine = engine_of(torch.nn.Parameter(torch.ones(1)), bound=1.0, optimizer=torch.optim.SGD, lr=1.0, momentum=0.9)
    group = engine.optimizer.param_groups[0]
    group["use_muon"] = True
    with as_plain_steps(engine, 8.0):
        assert group["lr"] == 8.0 and group["momentum"] == 0.9 and engine.optimizer.clip_grad == 1.0
    assert group["lr"] == 1.0


def counts_of(strategy, *lengths):
    counts = StepCounts(strategy)
    for batch in lengths:
        mask = torch.arange(max(batch)) < torch.tensor(batch)[:, None]
        counts.add(SimpleNamespace(action_mask=mask.long()))
    return counts


def test_other_ranks_count_and_reading_the_counts_changes_none():
    others = torch.tensor([60.0, 1.0], dtype=torch.float64)

    def all_reduce(counts, op):
        assert op == "sum"
        counts += others  # in place, as torch.distributed does
        return counts

    counts = counts_of(SimpleNamespace(all_reduce=all_reduce), (10,), (5, 0))  # an empty response is a sample
    assert counts.of_all_ranks() == counts.of_all_ranks() == (75, 4)
    counts.clear()
    assert counts.of_all_ranks() == (60, 1)
