from openrlhf_sagc.grading.comparison import equal
from openrlhf_sagc.grading.lessons import FORMS, LESSONS


def test_the_process_survives_its_lessons():
    for gold, answer in LESSONS:
        assert equal(gold, answer) in (True, False), (gold, answer)
    assert 0 < FORMS < len(LESSONS)
