"""What one step leaves to the next."""

import json

from openrlhf_sagc.decisions.group_parts import GroupParts
from openrlhf_sagc.decisions.in_flight import InFlight
from openrlhf_sagc.decisions.records import Group, Prompt, Rollout


def test_kept_groups_have_their_own_size_after_a_save_and_nothing_runs():
    prompts = [Prompt(text, "", None, 1) for text in "abc"]
    kept = Group(0, 0, prompts[0], 8, 10, samples=["sample"] * 8)
    running = {number: GroupParts(Group(number, 0, prompts[number], 4, 4)) for number in (1, 2)}
    flight = InFlight(running, [kept], [[Rollout(5, 1.0, 0.0, True, False, None)]], dispatched=3)
    assert flight and flight.prompts == prompts and flight.running_prompts == prompts[1:]
    restored = InFlight()
    assert not restored
    restored.load_state_dict(json.loads(json.dumps(flight.state_dict())))
    (group,) = restored.accepted
    assert (group.prompt.text, group.size, len(group.samples)) == ("a", 8, 8)
    assert not restored.running and not restored.loads
    assert (restored.dispatched, restored.unobserved) == (3, flight.unobserved)
