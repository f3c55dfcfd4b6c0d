"""Size policies that others write: in the driver's loop on fake engines, their refusals, their state."""

from functools import partial

import pytest
from flags import arguments_with
from policy_files import metrics_of, respond, through_a_checkpoint, written

import openrlhf_sagc.driver.rollout as rollout
from openrlhf_sagc.own_policies import WATCHED, OwnFilter, PolicyError
from openrlhf_sagc.policies import build_controller


@pytest.fixture
def file(tmp_path):
    """file(source) -> the path of a module that has it."""
    return partial(written, tmp_path)


def policy_of(word, **flags):
    given = {"rollout.n_samples_per_prompt": 8, "rollout.batch_size": 8, "rollout.sagc.policy": word}
    return build_controller(arguments_with(given | {f"rollout.sagc.{name}": value for name, value in flags.items()}))


# --- group sizes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Bandit", "Capped", "Fixed", "Restless"])
def test_a_run_goes_by_it_and_goes_on_as_if_it_had_not_been_interrupted(make_generator, file, name):
    flags = {"group_sizes": [2, 4, 8], "policy": f"{file()}:{name}", "objective": "throughput"}
    generator = make_generator(400, respond, **flags)
    before, _ = metrics_of(generator, 4)
    saved = through_a_checkpoint(generator.state_dict())
    resumed = make_generator(400, respond, **flags)
    resumed.load_state_dict(saved)
    steps = [metrics_of(run, 4)[0] for run in (generator, resumed)]
    if name == "Restless":  # has no state
        assert steps[0][0] == steps[1][0] and set(before + steps[1]) == {2, 4, 8}
    else:
        assert steps[0] == steps[1]
        assert set(before + steps[0]) == {"Bandit": {2, 4}, "Capped": {4}, "Fixed": {8}}[name]


def test_a_saved_state_stays_as_it_is_while_the_run_goes_on(file):
    """A checkpoint is written while the next step runs."""
    policy = policy_of(f"{file()}:Bandit")
    given = {"running": [[False] * 4], "forecasts": None, "frame_ends": True}
    policy.observe([[1, 2, 3, 4]], **given)
    saved = policy.state_dict()
    before = [float(value) for value in saved["state"]["count"]]
    policy.observe([[1, 2, 3, 4]], **given)
    assert [float(value) for value in saved["state"]["count"]] == before
    policy.load_state_dict(saved)
    policy.observe([[1, 2, 3, 4]], **given)
    assert [float(value) for value in saved["state"]["count"]] == before


def test_it_is_read_once_a_step(make_generator, file):
    generator = make_generator(400, respond, group_sizes=[2, 4, 8], policy=f"{file()}:Restless")
    sizes, metrics = metrics_of(generator, 6)
    assert sizes == [4, 8, 2] * 2 and metrics["sagc/next_group_size"] == 4 and metrics["sagc/group_size"] == 2


def test_it_gets_what_it_names(make_generator, file):
    policy = policy_of(f"{file()}:Bandit", tradeoff=3.0)
    settings = {"straggler_ratio": 2.5, "max_straggler_rate": 0.2, "tradeoff": 3.0, "discount": 0.98}
    assert policy._own.settings == settings | {"objective": "throughput", "initial_group_size": 8}
    assert policy._own.sizes == (4, 8, 16, 32) and policy.group_size == 4 and type(policy.group_size) is int
    for name, signal in (("Bandit", "tokens"), ("Watches", "seconds")):
        generator = make_generator(400, policy=f"{file()}:{name}", signal=signal, group_sizes=[4, 8])
        generator.generate_samples()
        own = generator.planner.controller._own
        if name == "Bandit":
            assert own.more == {"running": [[False] * 4] * 4, "forecasts": None, "frame_ends": True}
        else:
            assert own.seen == ([[10.0] * 8] * 2, [[False] * 8] * 2, True)


def test_its_metrics_are_logged_beside_the_straggler_rate(make_generator, file, monkeypatch):
    warnings = []
    monkeypatch.setattr(rollout.logger, "warning", warnings.append)
    tailed = lambda prompt, size: [(10, float(place % 2)) for place in range(size - 1)] + [(90, 1.0)]  # noqa: E731
    generator = make_generator(400, tailed, policy=f"{file()}:Bandit")
    generator.generate_samples()
    assert generator.metrics["sagc/straggler_rate"] == 1.0 == generator.metrics["sagc/straggler_rate_mean"]
    assert generator.metrics["sagc/best"] > 0 and "sagc/virtual_queue" not in generator.metrics
    long = lambda prompt, size: [(60, float(place % 2)) for place in range(size)]  # noqa: E731
    make_generator(40, long, policy=f"{file()}:Bandit").generate_samples()
    assert not warnings  # of a limit that it does not know


# What stands in the file behind the class's head, and the line.
GOOD = {
    "__init__(self, group_sizes)": "self.group_size = 8",
    "observe(self, groups)": "...",
    "metrics(self)": "return {}",
    "state_dict(self)": "return {}",
    "load_state_dict(self, state)": "...",
}


def source(changes=(), head="class Mine:"):
    methods = GOOD | dict(changes)
    body = [f"    def {call}:\n        {code}\n" for call, code in methods.items() if code]
    return "\n".join([head, *body])


REFUSED = {
    "no class is named": ("", "names no class: use FILE.py:Class"),
    "a file that does not exist": ("/none/sizes.py:Mine", "cannot be imported: there is no file /none/sizes.py"),
    "syntax": ("def a(:", "cannot be imported: SyntaxError: invalid syntax (sizes.py, line 1)"),
    "an import": ("\nimport none", "cannot be imported: line 2: ModuleNotFoundError: No module named 'none'"),
    "an end": ("import sys\nsys.exit(3)", "cannot be imported: line 2: SystemExit: 3"),
    "another class": ("import json\nclass Other: ...", "is not there: "),
    "no verb": (source({"observe(self, groups)": ""}), "has no method observe(groups): add it"),
    "no state": (source({"state_dict(self)": ""}), "has no method state_dict(): add it"),
    "no groups": (
        source({"observe(self, groups)": "", "observe(self)": "..."}),
        "has a method observe that cannot be called as observe(groups): let it take that",
    ),
    "async": (source(head="class Mine:\n    async def metrics(self): ...") + "\n    metrics = _metrics", None),
    "no constructor": (
        "class Mine: ...",
        "cannot be made as Mine(group_sizes, **settings): TypeError: Mine() takes no",
    ),
    "a constructor that needs more": (
        source({"__init__(self, group_sizes)": "", "__init__(self, group_sizes, epsilon)": "..."}),
        "missing 1 required positional argument: 'epsilon'",
    ),
    "a constructor that raises": (
        source({"__init__(self, group_sizes)": "1 / 0"}),
        "cannot be made as Mine(group_sizes, **settings): line 3: ZeroDivisionError: division by zero",
    ),
    "no size": (
        source({"__init__(self, group_sizes)": "..."}),
        "fails in group_size: AttributeError: 'Mine' object has no attribute 'group_size'",
    ),
    "a size that is a method": (source({"group_size(self)": "return 8", "__init__(self, group_sizes)": ""}), None),
    **{
        f"size {size}": (
            source({"__init__(self, group_sizes)": f"self.group_size = {size}"})
            + "\nfrom numpy import array\nfrom torch import tensor",
            f"gives group_size {size}: use an int, one of [4, 8, 16, 32]",
        )
        for size in ("5", "8.0", "True", "None", "'8'", "tensor(8.)", "array([8])")
    },
}
REFUSED["async"] = (
    source({"metrics(self)": ""}) + "\n    async def metrics(self): ...",
    "has a method metrics that cannot be called as metrics(): let it take that, without async",
)
REFUSED["a size that is a method"] = (
    source({"__init__(self, group_sizes)": "...", "group_size(self)": "return 8"}),
    "gives group_size <bound method Mine.group_size of <",
)


@pytest.mark.parametrize("case", REFUSED)
def test_a_class_that_does_not_fit_is_one_line(file, case):
    text, line = REFUSED[case]
    word = text if text.startswith("/") else f"{file(text)}:Mine" if text else "Mine"
    with pytest.raises(PolicyError) as refused:
        policy_of(word)
    message = str(refused.value)
    assert message.startswith(f"policy {word} ") and line in message and "\n" not in message and len(message) < 500
    if case == "another class":
        assert message.endswith("has Other")


@pytest.mark.parametrize(
    "change, line",
    [
        ({"observe(self, groups)": "self.group_size = 5"}, "gives group_size 5: use an int, one of [4, 8]"),
        ({"observe(self, groups)": "groups[0][99]"}, "fails in observe: line 6: IndexError: list index out of range"),
        ({"metrics(self)": "return [1]"}, "gives metrics [1], which is no dictionary of numbers: AttributeError"),
        ({"metrics(self)": "return {'a': 'b'}"}, "gives metrics {'a': 'b'}, which is no dictionary of numbers"),
        (
            {
                "state_dict(self)": "return {'me': getattr(self, 'seen', 0)}",
                "observe(self, groups)": "self.seen = {1}",
            },
            "has a set in its state_dict: a checkpoint holds numbers, texts",
        ),
    ],
)
def test_a_mistake_in_a_step_ends_the_run_in_one_line(make_generator, file, change, line):
    word = f"{file(source(change))}:Mine"
    generator = make_generator(40, policy=word, rollout__n_samples_per_prompt=8)
    with pytest.raises(PolicyError) as ended:
        generator.generate_samples()
        generator.state_dict()
    assert str(ended.value).startswith(f"policy {word} {line}") and "\n" not in str(ended.value)


def test_methods_that_are_builtins_are_called(file):
    builtins = {"metrics(self)": "", "state_dict(self)": "", "load_state_dict(self, state)": ""}
    text = (
        source(builtins, "class Mine(dict):")
        + "    metrics, state_dict, load_state_dict = dict, dict.copy, dict.update\n"
    )
    policy = policy_of(f"{file(text)}:Mine")
    policy.load_state_dict({**policy.state_dict(), "state": {"seen": 1}})
    assert policy.state_dict()["state"] == {"seen": 1} and policy.metrics().keys() == set(WATCHED)
    empty = file("class Mine(dict):\n    def admit(self, group): ...")  # whose signature nobody knows
    assert OwnFilter(f"{empty}:Mine", {"tolerance": 0.0}).admit(None) is None


@pytest.mark.parametrize("flag", ["rollout.sagc", "algo.dynamic_filtering"])
def test_the_command_refuses_it_before_ray_starts(run_trainer, file, flag):
    word = f"{file('class Mine: ...')}:Mine"
    dot = "." if flag == "rollout.sagc" else "_"
    with pytest.raises(SystemExit) as refused:
        run_trainer(f"--{flag}{dot}enable", f"--{flag}{dot}policy", word, "--rollout.sagc.group_sizes", "4", "8")
    line = str(refused.value)
    assert line.startswith(f"openrlhf_sagc: --{flag}{dot}policy {word} ") and "\n" not in line
    assert "takes no arguments" in line or "has no method admit(group): add it" in line


# --- checkpoints of other policies ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "before, now", [(None, "Fixed"), ("Bandit", "Fixed"), ("Bandit", None), ("Fixed", "Bandit"), ("Fixed", "Fixed")]
)
def test_a_checkpoint_of_another_policy_goes_on_and_a_line_says_so(make_generator, file, monkeypatch, before, now):
    warnings = []
    monkeypatch.setattr(rollout.logger, "warning", warnings.append)
    given = [{"policy": name and f"{file()}:{name}", "group_sizes": [4, 8]} for name in (before, now)]
    generator = make_generator(400, respond, **given[0])
    metrics_of(generator, 3)
    saved = through_a_checkpoint(generator.state_dict())
    resumed = make_generator(400, respond, **given[1])
    resumed.load_state_dict(saved)
    sizes, metrics = metrics_of(resumed, 2)
    assert sizes[0] == saved["samples_generator"]["controller"]["group_size"]
    assert (sizes[1] == 8) >= (now == "Fixed") and "sagc/straggler_rate" in metrics
    names = [f"sizes.py:{name}" if name else "none" for name in (before, now)]
    anew = f"{names[1]}, which begins anew" if now else "none"
    line = f"--ckpt.path ckpt was saved with --rollout.sagc.policy {names[0]}, and this run has {anew}"
    assert warnings == [line] * (before != now)


def test_a_single_size_takes_the_place_of_a_policys(make_generator, file):
    generator = make_generator(400, respond, policy=f"{file()}:Bandit", group_sizes=[4, 8])
    metrics_of(generator, 3)
    saved = through_a_checkpoint(generator.state_dict())
    resumed = make_generator(400, respond, enable=False, group_sizes=[8], rollout__n_samples_per_prompt=8)
    resumed.load_state_dict(saved)
    assert metrics_of(resumed, 2)[0] == [8, 8]
