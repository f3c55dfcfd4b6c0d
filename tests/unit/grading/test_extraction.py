import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_sagc.grading.comparison import equal
from openrlhf_sagc.grading.extraction import extract_answer
from openrlhf_sagc.math_reward import response_of

ANSWERS = r"""
so \boxed{5} ~ 5   \boxed{5 and so. Thus \boxed{6} ~ 6   so ⌫oxed{3} ~ 3   \boxed{1} no, \boxed {\frac{1}{2}}. ~ \frac{1}{2}   \boxed{\{1,2\}} ~ \{1,2\}
\boxed{\left\{x \right.} ~ \left\{x \right.   \boxed{7 \boxed{8}} ~ 8   \fbox{6} }} ~ 6
\framebox{6}, \\boxed{7} ~ 6; 7   so $\boxed8$ ~ 8   so \boxed 16. ~ 16   so \boxed\frac{1}{2} ~ \frac{1}{2}
a⏎#### 1,000<|im_end|></s> ⏎ ~ 1,000   #### 18⏎\boxed{2} ~ 2   Answer: 34 ~ 34   so⏎**Final Answer:** $\frac12$ ⏎Done ~ $\frac12$
Answer: \boxed{2}⏎Answer: 3 ~ 2   #### Step 1⏎7⏎Answer: 8 ~ 8   #### Answer: 9 ~ 9   Answer: 1⏎#### 2 ~ 2
#### 540. ~ 540.   #### $540 ~ $540   **#### 540** ~ 540   The answer is #### -7. ~ -7.
#### 1⏎no⏎#### 2 apples ⏎so ~ 2 apples   #### 1 #### 2 ~ 2   #### 3 #### ~ 3   #### 4⏎#### ~ 4   ####⏎5 ~ ∅
Answer:⏎3 ~ 3   **Final Answer**⏎⏎$$⏎17⏎$$ ~ 17   ### Answer⏎$$17$$ ~ $$17$$   the answer is 5 ~ ∅   my answer: 5 ~ ∅   The final answer is: **$18** ~ $18
"""
JOINED = r"""
Either $\boxed{-4}$ or $\boxed{9}$. ~ -4; 9   \boxed{1}, \boxed{2}, and \boxed{3} ~ 1; 2; 3
$\boxed{(2,2)} \quad \text{and} \quad \boxed{(6,2)}$ ~ (2,2); (6,2)   $y_1 = \boxed{3}$ and $y_2 = \boxed{4}$ ~ 3; 4
\boxed{4}\boxed{9} ~ 4; 9   \boxed{4}⏎⏎\boxed{4} ~ 4   \boxed{4} and then, after all, \boxed{9} ~ 9
\boxed{4}. No: \boxed{9} ~ 9   { \boxed{4} \boxed{3 ~ ∅   \boxed{15}, no: \boxed{\frac{3}{ ~ ∅
\boxed{15}. No: $\boxed ~ ∅   Answer: 4⏎\boxed{4 ~ ∅
"""
THOUGHTS = r"""
<think>\boxed{4}</think>So \boxed{5}. ~ 5   <think>So \boxed{5}.</think> ~ ∅   <think>So \boxed{5}. ~ ∅
So \boxed{5}.</think> It is 5. ~ ∅   \boxed{4}</think> \boxed{5} ~ 5   \boxed{5} <think> or \boxed{6}? ~ 5
<thinking>\boxed{4}</thinking>⏎Answer: 5 ~ 5
"""  # of the fourth the prompt has opened


@pytest.mark.parametrize("case", re.split("   |\n", (ANSWERS + JOINED[1:] + THOUGHTS[1:]).strip()))
def test_what_a_response_answers(case):
    """⏎ is the end of a line, ⌫ a \\b that a program read as a backspace, and ∅ no answer."""
    response, answer = case.replace("⏎", "\n").replace("⌫", "\b").split(" ~ ")
    assert extract_answer(response) == (None if answer == "∅" else answer)


RESPONSES = r"""
<s>1+1?</s>2</s></s> ~ 1+1?</s> ~ 2</s></s>   e.g. \boxed{3} 1+1?2 ~ e.g. \boxed{3} 1+1? ~ 2
respelled: 2 ~ re-spelled:  ~ respelled: 2   2 ~  ~ 2   1+1? 1+1?2 ~ 1+1? ~  1+1?2   1+1?<think>2 ~ 1+1?<think> ~ <think>2
1+1?<think>⏎\boxed{2}</think> ~ 1+1?<think>⏎ ~ <think>\boxed{2}</think>
"""


@pytest.mark.parametrize("case", re.split("   |\n", RESPONSES.strip()))
def test_response_of(case):
    query, prompt, response = case.replace("⏎", "\n").split(" ~ ")
    assert response_of(query, prompt) == response
    assert response_of("x" * 64 + response + ".", "cut off" + "x" * 64) == response + "."


END = "Put the final answer in a box, as in \\boxed{7}, and say no more. Go!"


@pytest.mark.parametrize("cut", [0, 5, 30, len("What is 1+1? " + END) + 3])
@pytest.mark.parametrize("answer", ["2", f"You said: {END} So 2"])
def test_a_prompt_that_says_its_end_twice_is_left_out(cut, answer):
    prompt = f"What is 1+1? {END} I repeat: {END}"
    response = response_of(prompt[cut:] + answer, prompt)
    assert response == answer or cut and response == " So 2"  # a repeated end of a prompt that was cut off is left out
    assert response_of(f"What is 1 + 1? {END}  I repeat: {END}2", prompt) == "2"


@pytest.mark.parametrize("response", ["#### 540.", "#### $540", "**#### 540**", "It is #### \\$540.00", "#### 540 cm"])
def test_what_is_stated_is_graded(response):
    assert equal("540", extract_answer(response)) and not equal("54", extract_answer(response))


@given(st.text(alphabet=r"\{}boxedfrac1234,.()^_$ #:*answer<>/thik", max_size=80))
def test_any_text_is_read(text):
    assert extract_answer(text) is None or extract_answer(text) in text or ";" in extract_answer(text)


LONG = r" |{|}|\|$|\boxed{|\boxed|\boxed{1}|\boxed{1} |\boxed 1,|#### |####|Answer: a |<a>|</s>|<x> |<think>|</think>|<think></think>"
LONG = [*(LONG + r"|Answer:|*|#|1,000 |(|\text{|and |\[").split("|"), "\n", "answer\n", "####\n"]


@pytest.mark.parametrize("text", LONG)
def test_a_megabyte_is_read_in_time_that_grows_with_it(text):
    """Four times the text may take eight times as long; a square would take sixteen."""

    def seconds(size: int) -> float:
        response = text * (size // len(text))
        started = time.process_time()
        extract_answer(response_of("prompt" + response, "prompt"))
        extract_answer("Answer:\n" + response + "x")
        response_of(response + "b", "x" + text * 30)
        return time.process_time() - started

    small = min(seconds(250_000) for _ in range(3))
    assert seconds(1_000_000) < 8 * small + 0.2
