"""How messages name a prompt."""

from openrlhf_sagc.driver.prompt_excerpt import excerpt


def test_a_long_prompt_is_named_by_its_end():
    system = "You solve problems. " * 50
    assert excerpt("What is 1 + 1?") == "'What is 1 + 1?'"
    named = excerpt(f"{system}What is 1 + 1?")
    assert named.startswith("'You solve") and named.endswith("What is 1 + 1?'") and len(named) < 260
