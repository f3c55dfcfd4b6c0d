"""Which prompts of a frame a step draws."""

from hypothesis import given
from hypothesis import strategies as st

from openrlhf_sagc.decisions.frame import Frame
from openrlhf_sagc.decisions.records import Part, Prompt


def frame_of(lengths, old=()):
    """A frame of prompts that are expected to be so long, of which those named have waited before."""
    frame = Frame()
    prompts = [Prompt(str(length), "", None, 1, must_finish=length in old) for length in lengths]
    frame.fill(prompts, lambda prompt: float(prompt.text))
    return frame


def lengths_of(prompts):
    return sorted(int(prompt.text) for prompt in prompts)


def test_steps_take_the_parts_whatever_their_order():
    frame = frame_of(reversed(range(12)))
    assert frame.part(10, 4, 0.9) == Part(2, 3) and frame.part(2, 4, 0.9) == Part(1, 2)
    assert lengths_of(frame.draw(4, Part(1, 3))) == [4, 5, 6, 7]
    assert lengths_of(frame.draw(4, Part(1, 2))) == [8, 9, 10, 11]
    assert lengths_of(frame.draw(4, frame.part(8, 4, 0.5))) == [0, 1, 2, 3]
    assert not frame and frame.part(8, 4, 0.5) == Part(0, 1) and frame.draw(4, Part(0, 1)) == []


def test_what_a_step_asks_for_later_is_of_like_length():
    frame = frame_of(range(30))
    assert lengths_of(frame.draw(10, Part(1, 3))) == list(range(10, 20))
    assert lengths_of(frame.draw(4, None)) == [8, 9, 20, 21]
    assert lengths_of(frame.draw(2, None)) == [7, 22]


def test_a_step_that_needs_more_or_less_than_its_part_draws_around_its_middle():
    assert lengths_of(frame_of(range(30)).draw(12, Part(1, 3))) == list(range(9, 21))
    assert lengths_of(frame_of(range(30)).draw(12, Part(0, 3))) == list(range(12))
    assert lengths_of(frame_of(range(30)).draw(6, Part(1, 3))) == list(range(12, 18))


def test_prompts_that_have_waited_are_drawn_before_others_of_their_part():
    drawn = frame_of(range(30), old=(10, 19, 25)).draw(4, Part(1, 3))
    assert [int(prompt.text) for prompt in drawn[:2]] == [10, 19] and lengths_of(drawn) == [10, 14, 15, 19]


def test_prompts_of_an_earlier_episode_are_drawn_before_others_that_have_waited():
    frame = Frame()
    prompts = [Prompt(str(length), "", None, 1 if length in (0, 9) else 2, must_finish=True) for length in range(10)]
    frame.fill(prompts, lambda prompt: float(prompt.text))
    assert [int(prompt.text) for prompt in frame.draw(4, Part(0, 1))] == [0, 9, 4, 5]


@given(st.integers(1, 60), st.lists(st.tuples(st.integers(1, 12), st.floats(0, 0.999), st.booleans()), max_size=20))
def test_every_prompt_is_drawn_once_and_never_more_than_asked_for(count, draws):
    frame, drawn = frame_of(range(count)), []
    for asked, place, first in draws:
        before = len(frame)
        taken = frame.draw(asked, frame.part(5, asked, place) if first else None)
        assert len(taken) == min(asked, before) and len(frame) == before - len(taken)
        drawn += taken
    assert sorted([*lengths_of(drawn), *lengths_of(frame.prompts)]) == list(range(count))
