"""What is read of an earlier run's trace."""

import math

import pytest
import torch

from openrlhf_sagc.config.length_history import MOST_ROLLOUTS, read_history
from openrlhf_sagc.decisions.length_prediction import LengthPredictor, key_of

HEADER = "prompt_id,sample_id,tokens,correct,truncated,step,group_size,seconds,stopped\n"


def read(tmp_path, text):
    file = tmp_path / "trace.csv"
    file.write_text(text)
    return read_history(str(file))


def test_finished_rollouts_count_and_of_them_the_last_ones(tmp_path):
    assert read(tmp_path, HEADER + "a,0-0,100,1,0,1,8,1.5,0\na,0-1,900,,,1,8,1.5,1\nb,1-0,0,0,0,1,8,1.5,0\n") == {
        "a": [math.log(100)],
        "b": [0.0],
    }
    rows = "".join(f"a,{n},{n + 1}\n" for n in range(2 * MOST_ROLLOUTS))
    assert read(tmp_path, "prompt_id,sample_id,tokens\n" + rows)["a"][0] == math.log(MOST_ROLLOUTS + 1)


@pytest.mark.parametrize(
    "text, wrong",
    [
        ("", "line 1 has no column prompt_id, tokens: give the --rollout.trace of a run"),
        ("prompt_id,length\n", "line 1 has no column tokens"),
        (HEADER, "has no finished rollout"),
        (HEADER + "a,0,9\n", "line 2 has 3 fields, not 9 as line 1"),
        ("prompt_id,tokens\na,-5\n", "line 2: tokens must be a whole number below 10^9, got -5"),
        ("prompt_id,tokens\na,\n", "line 2: tokens must be a whole number below 10^9, got nothing"),
    ],
)
def test_what_is_no_trace_is_named(tmp_path, text, wrong):
    with pytest.raises(ValueError) as refused:
        read(tmp_path, text)
    assert str(refused.value).startswith(f"{tmp_path / 'trace.csv'} {wrong}")


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(ValueError, match="none.csv cannot be read as text: No such file"):
        read_history(str(tmp_path / "none.csv"))
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="binary.csv cannot be read as text"):
        read_history(str(tmp_path / "binary.csv"))


# --- a checkpoint ------------------------------------------------------------------------------------------------------


def save(folder, step, state, name="mp_rank_00_model_states.pt"):
    place = folder / "_actor" / f"global_step{step}"
    place.mkdir(parents=True)
    torch.save({"module": {"weight": torch.ones(3)}, "samples_generator": state}, place / name)
    return place


def test_the_last_checkpoint_of_a_run_knows_its_prompts(tmp_path):
    """And its drift: a prompt is expected to be as long as the run that saved it expected it to be."""
    predictor = LengthPredictor()
    for _ in range(3):
        for prompt, tokens in (("a", 100), ("b", 3000)):
            predictor.observe(prompt, [tokens] * 8, [False] * 8)
    save(tmp_path, 9, {"predictor": LengthPredictor().state_dict()})
    newest = save(tmp_path, 10, {"predictor": predictor.state_dict()}, "zero_pp_rank_0_mp_rank_00_model_states.pt")
    for place in (tmp_path, newest):
        history = read_history(str(place))
        assert {key: math.exp(logs[0]) for key, logs in history.items()} == pytest.approx(
            {key_of("a"): 100, key_of("b"): 3000}, rel=0.05
        )
        fresh = LengthPredictor()
        fresh.remember(history)
        for prompt in "ab":
            assert fresh.predict(prompt) == pytest.approx(predictor.predict(prompt), rel=0.05)


def test_a_folder_that_is_no_checkpoint_with_lengths(tmp_path):
    with pytest.raises(ValueError, match=f"^{tmp_path} has no checkpoint: give a run's --ckpt.path"):
        read_history(str(tmp_path))
    of_an_earlier_version = {"prompts": {"0" * 16: [7.0, 1.0]}, "drift": 0.0}
    predictors = [None, LengthPredictor().state_dict(), of_an_earlier_version]
    for step, state in enumerate([{}, *({"predictor": predictor} for predictor in predictors)]):
        place = save(tmp_path, step, state)
        with pytest.raises(ValueError, match="model_states.pt has no lengths, since its run predicted none"):
            read_history(str(place))


class Code:
    def __reduce__(self):
        return print, ("run",)


@pytest.mark.parametrize("state", [Code(), {"predictor": {"prompts": {"a": "b"}}}, {"predictor": [1]}])
def test_nothing_of_a_checkpoint_is_executed_and_odd_ones_are_refused(tmp_path, state, capsys):
    place = save(tmp_path, 1, state)
    with pytest.raises(ValueError, match="model_states.pt cannot be read as a checkpoint: ") as refused:
        read_history(str(place))
    assert "\n" not in str(refused.value) and not capsys.readouterr().out
