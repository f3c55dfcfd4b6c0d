"""Lengths from traces and from distributions."""

import math

import numpy as np
import pytest
from cpu_stack import ROOT
from lib.simulation.lengths import LogNormal, Trace

TRACES = ROOT / "../shared/data/traces"
HEADER = "prompt_id,sample_id,tokens,correct,truncated\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: no column prompt_id, sample_id, tokens; found nothing"),
        ("prompt_id,tokens\na,1\n", "line 1: no column sample_id; found prompt_id, tokens"),
        ("prompt_id,sample_id,tokens,tokens\na,0,1,1\n", "line 1: a column has the name of another one"),
        ("x" * 200_000 + "\na\n", "line 1: field larger than field limit"),
        (HEADER, "line 2: no rollouts below the header"),
        (HEADER + "a,0,5,1,0\na,1,5.5,1,0\n", "line 3: tokens must be a whole number from 0 to 999999999, got 5.5"),
        (HEADER + "a,0,-5,1,0\n", "line 2: tokens must be a whole number .* got -5"),
        (HEADER + "a,0,nan,1,0\n", "line 2: tokens must be a whole number .* got nan"),
        (HEADER + "a,0,,1,0\n", "line 2: tokens must be a whole number .* got nothing"),
        (HEADER + "a,0,9999999999,1,0\n", "line 2: tokens must be a whole number .* got 9999999999"),
        (HEADER + "a,0,5,1,0\n\na,0,6,1,0\n", "line 4: prompt_id a, sample_id 0 are those of line 2"),
        (HEADER + "a,0,5,2,0\n", "line 2: correct must be 0 or 1, got 2"),
        (HEADER + "a,0,5,1,yes\n", "line 2: truncated must be 0 or 1, got yes"),
        (HEADER + "a,0,5,1,\na,1,5,,0\n", "line 3: correct is empty: give it in all lines or in none"),
        (HEADER.replace("truncated", "stopped") + "a,0,5,1,no\n", "line 2: stopped must be 0 or 1, got no"),
        (HEADER.replace("truncated", "stopped") + "a,0,5,,1\n", "line 3: no rollouts below the header"),
        (HEADER + "a,0,5,1\n", "line 2: not 5 fields as in line 1"),
        (HEADER + "a,0,5,1,0,7\n", "line 2: not 5 fields as in line 1"),
    ],
    ids=lambda text: text[:40],
)
def test_bad_traces_are_refused_with_the_line(text, message, tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"trace.csv {message}"):
        Trace(path)


def test_a_trace_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "trace.csv").write_bytes(b"prompt_id\xff")
    for path in (tmp_path / "trace.csv", tmp_path / "none.csv"):
        with pytest.raises(ValueError, match=f"{path.name} cannot be read as text: "):
            Trace(path)


def test_groups_of_a_trace_are_of_one_prompt_with_its_verdicts(tmp_path):
    path = tmp_path / "trace.csv"
    rows = {"a": [(1, 1), (2, 0)], "b": [(10, 0)], "c": [(20, 1), (21, 0), (22, 1)]}
    lines = [f"{prompt},{i},{n},{right}" for prompt, group in rows.items() for i, (n, right) in enumerate(group)]
    path.write_text("prompt_id,sample_id,tokens,correct\n" + "\n".join(lines))
    trace, generator = Trace(path), np.random.default_rng(0)
    prompts = trace.draw_prompts(300, generator)
    tokens_BG, correct_BG = trace.draw_rollouts(prompts, 20, generator)
    assert trace.has_correct and tokens_BG.shape == correct_BG.shape == (300, 20)
    groups = {frozenset(zip(*group)) for group in zip(tokens_BG.tolist(), correct_BG.astype(int).tolist())}
    assert groups == {frozenset(group) for group in rows.values()}
    assert all(len(set(group)) == 1 for group in trace.draw_rollouts([1], 4, generator)[0])  # b has a single sample
    of_c, _ = trace.draw_rollouts([2] * 50, 3, generator)
    assert all(len(set(group)) == 3 for group in of_c.tolist()) and len({*map(tuple, of_c.tolist())}) == 6


def test_stopped_rollouts_of_a_runs_trace_are_left_out(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("prompt_id,sample_id,tokens,correct,stopped\na,0,5,1,0\na,1,99,,1\nb,0,98,,1\na,2,7,0,0\n")
    trace, generator = Trace(path), np.random.default_rng(0)
    assert trace.samples_per_prompt.tolist() == [2] and trace.has_correct
    assert set(trace.draw_rollouts([0], 2, generator)[0].ravel().tolist()) == {5, 7}


def test_lognormal_lengths_have_their_moments_and_cap():
    source, generator = (
        LogNormal.parse("lognormal:median=500,between=0.6,within=0.3,cap=100000"),
        np.random.default_rng(0),
    )
    logs = np.log(source.draw_rollouts(source.draw_prompts(4000, generator), 8, generator)[0])
    assert np.median(logs) == pytest.approx(math.log(500), abs=0.03)
    assert logs.std(axis=1, ddof=1).mean() == pytest.approx(0.3, rel=0.05)
    assert logs.mean(axis=1).std() == pytest.approx(math.sqrt(0.6**2 + 0.3**2 / 8), rel=0.05)
    capped = LogNormal(500, 0.6, 0.3, 400)
    assert capped.draw_rollouts(capped.draw_prompts(50, generator), 8, generator)[0].max() == 400


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("normal:median=1,between=1,within=1,cap=9", "does not have the form lognormal:median=TOKENS"),
        ("lognormal:median=1,between=1,within=1", "does not have the form"),
        ("lognormal:median=1,between=x,within=1,cap=9", "does not have the form"),
        ("lognormal:median=0,between=1,within=1,cap=9", "median and cap must be at least 1"),
        ("lognormal:median=1,between=-1,within=1,cap=9", "between and within at least 0"),
        ("lognormal:median=1,between=nan,within=1,cap=9", "all finite"),
        ("lognormal:median=1,between=1,within=1,cap=9.5", "cap and prompts must be whole numbers"),
        ("lognormal:median=1,between=1,within=1,cap=9,prompts=0.5", "cap and prompts must be whole numbers"),
    ],
)
def test_bad_distributions_are_refused(words, message):
    with pytest.raises(ValueError, match=message):
        LogNormal.parse(words)


@pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces are not here")
def test_real_traces():
    trace = Trace(TRACES / "qwen25math_math100_n8.csv")
    assert trace.samples_per_prompt.tolist() == [8] * 100 and trace.has_correct
    assert sorted(Trace(TRACES / "deepscaler_1p5b_aime24_n3_cap16k.csv").samples_per_prompt) == [2] * 18 + [3] * 12
    with pytest.raises(ValueError, match="line 1: no column prompt_id, sample_id, tokens; found tokens_lo"):
        Trace(TRACES / "servegen_deepseek_r1_output_hist.csv")


def test_prompts_of_many_episodes_come_again():
    rng = np.random.default_rng(0)
    few = LogNormal.parse("lognormal:median=100,between=1,within=0.2,cap=9999,prompts=5")
    assert len(set(few.draw_prompts(200, rng))) == 5
    assert set(few.draw_prompts(200, rng)) == set(few.draw_prompts(200, np.random.default_rng(7)))
    new = LogNormal.parse("lognormal:median=100,between=1,within=0.2,cap=9999")
    assert len(set(new.draw_prompts(200, rng))) == 200


@pytest.mark.parametrize("within", [0.0, 0.6])
def test_what_is_expected_of_a_prompt_is_the_mean_of_its_rollouts(within):
    source, generator = LogNormal(500, 1.0, within, 1000), np.random.default_rng(0)
    prompts = source.draw_prompts(6, generator)
    tokens_BR, _ = source.draw_rollouts(prompts, 20000, generator)
    assert source.expected_tokens(prompts) == pytest.approx(tokens_BR.mean(axis=1), rel=0.02)
