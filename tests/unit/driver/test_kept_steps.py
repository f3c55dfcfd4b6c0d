"""Steps in a folder: what is written is what is read, and a file that is no step's is named with its field."""

import json
import os

import numpy as np
import pytest
from flags import arguments_with
from safetensors.numpy import load_file, save_file

from openrlhf_sagc.decisions.token_weights import PlainSteps
from openrlhf_sagc.driver.experience import GroupSample
from openrlhf_sagc.driver.kept_steps import KeptRollouts, check_kept_steps, keep_step, read_step
from openrlhf_sagc.driver.samples import Sample
from openrlhf_sagc.driver.streaming import StepSamples
from openrlhf_sagc.training.training import StepShare


def made_step(has_log_probs=True, **fields):
    """Groups of two and one, with samples of 4, 1 and 6 tokens."""
    share = StepShare(1 / 3, 4, plain=PlainSteps(7.1, 2.0), lost=1)
    samples = []
    for place, count in enumerate((4, 1, 6)):
        log_probs_T = np.linspace(-1, 0, count - 1, dtype=np.float32) if has_log_probs else None
        sample = {"reward": float(np.float32(0.1 * place)), "score": None, "truncated": place == 2, "clipped": False}
        sample |= {"ranges": [(0, count - 1)] if count > 1 else [], "prompt": f"prompt {place}", "label": ["a", 1]}
        sample |= {"images": None, "mm_train_inputs": None, "logs": {"solved": 0.1}, **fields}
        samples.append(Sample(np.arange(count, dtype=np.int32), log_probs_T=log_probs_T, **sample))
    groups = [(7, 2), (7, 2), (9, 1)]
    stamped = [GroupSample(sample, *group, share) for sample, group in zip(samples, groups)]
    return StepSamples(stamped, {"sagc/group_size": 2.0, "rate": float("nan")})


@pytest.fixture
def folder(tmp_path):
    for number in (3, 4):
        keep_step(str(tmp_path), number, made_step(), 62.5)
    return str(tmp_path)


@pytest.mark.parametrize("has_log_probs", [True, False])
def test_what_is_written_is_what_is_read(tmp_path, has_log_probs):
    keep_step(str(tmp_path), 1, made_step(has_log_probs), None)
    (read, pass_rate), written = read_step(str(tmp_path), 1), made_step(has_log_probs)
    assert sorted(os.listdir(tmp_path)) == ["step-1.json", "step-1.safetensors"] and pass_rate is None
    assert repr(read.metrics) == repr(written.metrics) and read.stream is None
    assert vars(read[0].step) == vars(written[0].step) and len({id(made.step) for made in read}) == 1
    assert [(made.group, made.group_size) for made in read] == [(7, 2), (7, 2), (9, 1)]
    for one, other in zip(read, written, strict=True):
        for name in Sample.__slots__:
            value, expected = getattr(one.sample, name), getattr(other.sample, name)
            assert type(value) is type(expected)
            np.testing.assert_array_equal(value, expected)
            assert getattr(value, "dtype", None) == getattr(expected, "dtype", None)


def test_what_is_no_json_is_kept_as_python_writes_it(tmp_path):
    label = {("a", 1): np.arange(2)}
    keep_step(str(tmp_path), 1, made_step(label=label, prompt="half \ud800 and é"), None)
    samples, _ = read_step(str(tmp_path), 1)
    assert samples[0].sample.label == repr(label) and samples[0].sample.prompt == "half ? and é"


def test_a_run_gets_the_steps_in_their_order_once(folder):
    for number in range(5, 12):
        keep_step(folder, number, made_step(), None)
    rollouts = KeptRollouts(folder)
    assert rollouts == [*range(3, 12)]
    answers = [rollouts.generate_samples() for _ in range(10)]
    assert [len(samples) for samples, *_ in answers] == [3] * 9 + [0]
    assert [rest for _, *rest in answers[:1] + answers[8:]] == [[62.5, 1, False], [None, 1, True], [None, 0, True]]


def test_a_generator_keeps_what_it_gives_to_training(make_generator, tmp_path):
    generator = make_generator(
        12, train__rollouts_to=str(tmp_path), filtering=True, respond=lambda _, size: [(9, i % 2) for i in range(size)]
    )
    given = [generator.generate_samples() for _ in range(2)]
    for number, (samples, pass_rate, *_) in enumerate(given, 1):
        read, kept_rate = read_step(str(tmp_path), number)
        assert [made.sample.ranges for made in read] == [made.sample.ranges for made in samples]
        assert (kept_rate, read.metrics, vars(read[0].step)) == (pass_rate, samples.metrics, vars(samples[0].step))


def change(values, path, new):
    """Set or, with None, delete what stands at the path of keys."""
    *path, last = path
    for key in path:
        values = values[key]
    if new is None:
        del values[last]
    else:
        values[last] = new


@pytest.mark.parametrize(
    "path, new, line",
    [
        (["format"], 2, "json: format: Input should be 1"),
        (["share"], None, "json: share: Field required"),
        (["share", "lost"], 2, "json: share: not of 3 samples"),
        (["share", "num_samples"], "4", "json: share.num_samples: Input should be a valid integer"),
        (["share", "divisor"], 2.0, "json: share: not of 3 samples"),
        (["share"], {"progress": 0.5, "num_samples": -1, "lost": -4}, "json: share: not of 3 samples"),
        (["share", "progress"], 1e9, "json: share: progress is not 0 to 1"),
        (["share", "progress"], float("nan"), "json: share: progress is not 0 to 1"),
        (["share", "plain"], [0.0, 2.0], "json: share: progress is not 0 to 1, or plain not above 0"),
        (["metrics", "rate"], "fast", "json: metrics.rate: Input should be a valid number"),
        (["groups"], [], "json: groups: List should have at least 1 item"),
        (
            ["groups", 0, "samples", 1, "reward"],
            1e999,
            "json: groups.0.samples.1.reward: Input should be a finite number",
        ),
        (["groups", 0, "samples", 1, "score"], 1.0, "json: groups: not all have a reward, or a score"),
        (["groups", 1, "samples", 0, "images"], ["a.png"], "json: groups.1.samples.0.images: Input should be"),
        (["groups", 1, "samples", 0, "ranges"], [[0, 6]], "safetensors: tokens.2: not those of its ranges"),
        (["groups", 1, "samples", 0, "ranges"], [[0, 3], [0, 3]], "safetensors: tokens.2: not those of its ranges"),
        (["groups", 1, "samples", 0, "ranges"], [[3, 2]], "safetensors: tokens.2: not those of its ranges"),
        (["groups", 1, "samples", 0, "more"], 1, "json: groups.1.samples.0.more: Extra inputs are not permitted"),
        (["tokens.1"], None, "safetensors: tokens.1: not int32"),
        (["tokens.1"], np.ones(1), "safetensors: tokens.1: not int32"),
        (["tokens.1"], np.ones(0, np.int32), "safetensors: tokens.1: not int32"),
        (["tokens.1"], np.ones((1, 1), np.int32), "safetensors: tokens.1: not int32"),
        (["tokens.1"], -np.ones(1, np.int32), "safetensors: tokens.1: not int32"),
        (["log_probs.2"], np.ones(4, np.float32), "safetensors: log_probs.2: not 5 finite float32"),
        (
            ["log_probs.2"],
            np.array([0, 0, 0, 0, np.nan], np.float32),
            "safetensors: log_probs.2: not 5 finite float32",
        ),
        (["log_probs.2"], np.ones(5), "safetensors: log_probs.2: not 5 finite float32"),
        (["log_probs.2"], None, "safetensors: log_probs.2: not 5 finite float32"),
        (["log_probs.0"], None, "safetensors: log_probs.1: no tensor of this step"),
        (["more"], np.ones(1), "safetensors: more: no tensor of this step"),
    ],
)
def test_a_file_that_is_no_steps_is_named_with_its_field(folder, path, new, line):
    for file, load in (
        (f"{folder}/step-4.json", lambda name: json.load(open(name))),
        (f"{folder}/step-4.safetensors", load_file),
    ):
        if ("." in path[0] or path[0] == "more") == file.endswith("json"):
            continue
        values = load(file)
        change(values, path, new)
        save_file(values, file) if file.endswith("tensors") else json.dump(values, open(file, "w"))
    with pytest.raises(ValueError) as refused:
        read_step(folder, 4)
    assert str(refused.value).startswith(f"{folder}/step-4.{line}") and "\n" not in str(refused.value)


@pytest.mark.parametrize("content", [None, b"", b"{", b"[" * 100_000, b"\xff" * 100])
@pytest.mark.parametrize("kind", ["json", "safetensors"])
def test_a_file_that_cannot_be_read_is_named(folder, kind, content):
    path = f"{folder}/step-4.{kind}"
    os.unlink(path)
    if content is not None:
        open(path, "wb").write(content)
    with pytest.raises(ValueError, match=f"^{path}: ") as refused:
        read_step(folder, 4)
    assert "\n" not in str(refused.value)


def checked(folder, level="token"):
    flags = {"train.rollouts_from": folder, "algo.advantage.is_correction_level": level}
    check_kept_steps(arguments_with(flags))


def test_a_run_is_refused_before_ray_starts_if_a_step_is_missing_or_lacks_what_its_flags_need(folder, tmp_path):
    checked(folder)
    checked(None)
    keep_step(folder, 5, made_step(has_log_probs=False), None)
    checked(folder, "off")
    begin = f"^openrlhf_sagc: --train.rollouts_from {folder}"
    with pytest.raises(
        SystemExit, match=f"{begin}/step-5.safetensors: no log_probs for --algo.advantage.is_correction_level token"
    ):
        checked(folder)
    os.unlink(f"{folder}/step-4.json")
    with pytest.raises(
        SystemExit, match=f"{begin} has no step-4.json: give a folder that --train.rollouts_to has written$"
    ):
        checked(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit, match=f"{begin}/empty has no step-1.json: give"):
        checked(f"{folder}/empty")
