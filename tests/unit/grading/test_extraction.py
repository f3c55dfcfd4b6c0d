import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_sagc.grading.extraction import extract_answer, response_of


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"so \boxed{5}", "5"),
        (r"\boxed{1} no, \boxed {\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{\left\{x \right.}", r"\left\{x \right."),
        (r"\boxed{7 \boxed{8}}", "8"),
        (r"\fbox{6} }}", "6"),
        (r"\framebox{6}, \\boxed{7}", "6; 7"),
        (r"so $\boxed8$", "8"),
        (r"so \boxed 16.", "16"),
        (r"so \boxed\frac{1}{2}", r"\frac{1}{2}"),
        ("so \boxed{3}", "3"),  # a \b that a program read as a backspace
        ("a\n#### 1,000 \n", "1,000"),
        ("#### 18\n\\boxed{2}", "2"),
        ("Answer: 34", "34"),
        ("so\n**Final Answer:** $\\frac12$ \nDone", "$\\frac12$"),
        ("Answer: \\boxed{2}\nAnswer: 3", "2"),
        ("#### Step 1\n7\nAnswer: 8", "8"),
        ("#### Answer: 9", "9"),
        ("Answer: 1\n#### 2", "2"),
        ("Answer:\n3", "3"),
        ("**Final Answer**\n\n$$\n17\n$$", "17"),
        ("### Answer\n$$17$$", "$$17$$"),
        ("the answer is 5", None),
        ("my answer: 5", None),
        ("", None),
    ],
)
def test_the_answer_is_the_last_box_or_what_follows_the_last_answer(response, answer):
    assert extract_answer(response) == answer


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"Either $\boxed{-4}$ or $\boxed{9}$.", "-4; 9"),
        (r"\boxed{1}, \boxed{2}, and \boxed{3}", "1; 2; 3"),
        (r"$\boxed{(2,2)} \quad \text{and} \quad \boxed{(6,2)}$", "(2,2); (6,2)"),
        (r"$y_1 = \boxed{3}$ and $y_2 = \boxed{4}$", "3; 4"),
        (r"\boxed{4}\boxed{9}", "4; 9"),
        ("\\boxed{4}\n\n\\boxed{4}", "4"),  # said twice
        (r"\boxed{4} and then, after all, \boxed{9}", "9"),
        (r"\boxed{4}. No: \boxed{9}", "9"),
    ],
)
def test_boxes_that_a_word_or_comma_joins_are_one_answer(response, answer):
    assert extract_answer(response) == answer


@pytest.mark.parametrize(
    "response",
    [r"{ \boxed{4} \boxed{3", r"\boxed{15}, no: \boxed{\frac{3}{", r"\boxed{15}. No: $\boxed", "Answer: 4\n\\boxed{4"],
)
def test_a_box_that_was_cut_off_lets_nothing_before_it_count(response):
    assert extract_answer(response) is None


def test_a_box_without_end_before_a_whole_one_does_not_matter():
    assert extract_answer(r"\boxed{5 and so. Thus \boxed{6}") == "6"


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"<think>\boxed{4}</think>So \boxed{5}.", "5"),
        (r"<think>So \boxed{5}.</think>", None),
        (r"<think>So \boxed{5}.", None),
        (r"So \boxed{5}.</think> It is 5.", None),  # the prompt opened the thought
        (r"\boxed{4}</think> \boxed{5}", "5"),
        (r"\boxed{5} <think> or \boxed{6}?", "5"),
        (r"<thinking>\boxed{4}</thinking>" + "\nAnswer: 5", "5"),
    ],
)
def test_thoughts_are_not_read(response, answer):
    assert extract_answer(response) == answer


@pytest.mark.parametrize(
    ("query", "prompt", "response"),
    [
        ("<s>1+1?</s>2</s></s>", "1+1?</s>", "2"),
        (r"e.g. \boxed{3} 1+1?2<|im_end|>" + "\n<|endoftext|>", r"e.g. \boxed{3} 1+1?", "2"),
        ("x" * 64 + "a <b> c", "cut off" + "x" * 64, "a <b> c"),
        ("respelled: 2", "re-spelled: ", "respelled: 2"),
        ("2", "", "2"),
        ("1+1? 1+1?2", "1+1?", " 1+1?2"),
        ("1+1?<think>2", "1+1?<think>", "<think>2"),
        ("1+1?<think>\n\\boxed{2}</think>", "1+1?<think>\n", "<think>\\boxed{2}</think>"),
    ],
)
def test_response_of(query, prompt, response):
    assert response_of(query, prompt) == response


END = "Put the final answer in a box, as in \\boxed{7}, and say no more. Go!"


@pytest.mark.parametrize("cut", [0, 5, 30, len("What is 1+1? " + END) + 3])
@pytest.mark.parametrize("answer", ["2", f"You said: {END} So 2"])
def test_a_prompt_that_says_its_end_twice_is_left_out(cut, answer):
    prompt = f"What is 1+1? {END} I repeat: {END}"
    assert response_of(prompt[cut:] + answer, prompt) == answer


def test_a_respelled_prompt_that_says_its_end_twice_is_left_out():
    assert response_of(f"What is 1 + 1? {END}  I repeat: {END}2", f"What is 1+1? {END} I repeat: {END}") == "2"


@given(st.text(alphabet=r"\{}boxedfrac1234,.()^_$ #:*answer<>/thik", max_size=80))
def test_any_text_is_read(text):
    assert extract_answer(text) is None or extract_answer(text) in text or ";" in extract_answer(text)


LONG = [
    " ",
    "\n",
    "{",
    "}",
    "\\",
    "$",
    "\\boxed{",
    "\\boxed",
    "\\boxed{1}",
    "\\boxed{1} ",
    "\\boxed 1,",
    "#### ",
    "Answer: a ",
]
LONG += [
    "<a>",
    "</s>",
    "<x> ",
    "<think>",
    "</think>",
    "<think></think>",
    "Answer:",
    "answer\n",
    "*",
    "1,000 ",
    "(",
    "\\text{",
    "and ",
]


@pytest.mark.parametrize("text", LONG)
def test_a_megabyte_is_read_in_time_that_grows_with_it(text):
    """Four times the text may take eight times as long; a square would take sixteen."""

    def seconds(size: int) -> float:
        response = text * (size // len(text))
        started = time.process_time()
        extract_answer(response_of("prompt" + response, "prompt"))
        response_of(response + "b", "x" + text * 30)
        return time.process_time() - started

    small = min(seconds(250_000) for _ in range(3))
    assert seconds(1_000_000) < 8 * small + 0.2


@pytest.mark.parametrize("text", [" ", "$", "\\["])
def test_the_line_behind_answer_is_read_in_time_that_grows_with_it(text):
    started = time.process_time()
    extract_answer("Answer:\n" + text * (1_000_000 // len(text)) + "x")
    assert time.process_time() - started < 2
