"""What a checkpoint holds of the scheduler: its format, checked before any of it is loaded, and what other flags change in it."""

from collections.abc import Iterator
from typing import Any

from openrlhf_sagc.config.refusal import FILTER, OFF, PREFIX, words
from openrlhf_sagc.config.settings import Settings
from openrlhf_sagc.decisions.records import Prompt
from openrlhf_sagc.driver.running_groups import has_log_probs
from openrlhf_sagc.own_policies import name_of
from openrlhf_sagc.run.data import is_described, other_data, refusal_of

# Add 1 whenever the entries of a `state_dict` of the scheduler or its parts change, or those of a record in it.
FORMAT = 9
# 3 has neither the digest of the trace nor `data`, and neither 3 nor 4 a frame of prompts; groups that these keep are rolled
# out again. None of them has the forecasts of tail batching, which begin anew. Before 7 waits for rewards are unknown, before 8
# what was expected of the last groups, before 9 the weights of kept groups and a pool's running ones. A policy of one's own adds its part to that of the controller or the sampler.
LOADED = (3, 4, 5, 6, 7, 8, FORMAT)


def check_saved_state(state: dict, path: str) -> None:
    """The state is one that this version can load.

    Args:
        state: what the checkpoint holds under `samples_generator`; empty if it holds nothing there.
        path: the checkpoint's, for the message.

    Raises:
        ValueError: the scheduler did not save it, or saved it in another format.
    """
    if "controller" not in state:
        raise ValueError(
            f"the checkpoint was saved by OpenRLHF without the scheduler: resume with {OFF}, or start from its model"
        )
    found = state.get("format", "missing")
    if found not in LOADED:
        raise ValueError(
            f"--ckpt.path {path} holds the scheduler's state in another format: samples_generator.format is {found}, and "
            f"this version of openrlhf_sagc loads {LOADED[0]} to {FORMAT}: resume with the version that saved it, or start from its model"
        )


def others_of_ones_own(state: dict[str, Any], args: Settings) -> Iterator[str]:
    """A line for each policy of one's own, saved or of this run, that does not go on with what it has learned.

    Args:
        state: as saved.
        args: OpenRLHF's.
    """
    pairs = (
        (PREFIX, state["controller"], args.rollout.sagc.policy),
        (FILTER, state["sampler"].get("filter", {}), args.algo.dynamic_filtering_policy),
    )
    for prefix, saved, word in pairs:
        before, now = saved.get("policy"), name_of(word)
        if before != now:
            anew = f"{now}, which begins anew" if now else "none"
            yield f"--ckpt.path {args.ckpt.path} was saved with {prefix}policy {before or 'none'}, and this run has {anew}"


def resumed_state(state: dict[str, Any], args: Settings, prompts: int) -> dict[str, Any]:
    """The scheduler's state as a run with these flags and data loads it.

    Args:
        state: as saved.
        args: OpenRLHF's; `data.described` says which data they are.
        prompts: of an episode.

    Raises:
        ValueError: the data are others, and the flags do not say to begin the episode anew; or the saved group size is not
            among those of the run.
    """
    saved_data, now = state.get("data", {}), args.data.described
    difference, anew = other_data(saved_data, now), args.rollout.resume_data == "anew"
    if difference and not anew:
        raise ValueError(refusal_of(difference))
    if difference or (anew and not is_described(saved_data)):
        state = _begun_anew(state, prompts)
    return _with_fitting_groups(_with_sizes(state, sorted(set(args.rollout.sagc.group_sizes)), args.ckpt.path), args)


def _begun_anew(state: dict[str, Any], prompts: int) -> dict[str, Any]:
    """No prompt of the trainer's episode was drawn yet; policies keep what they have learned, but for the mean length."""
    before = state["episode"] - 1
    drawn = {"drained": True, "drawn_episode": before, "returned": [], "frame": [], "accepted": [], "running": []}
    return {**state, **drawn, "prompts_consumed": before * prompts, "token_weights": None}


def _with_sizes(state: dict[str, Any], sizes: list[int], path: str) -> dict[str, Any]:
    """A single size takes the place of the saved one."""
    controller = state["controller"]
    if len(sizes) == 1:
        controller = {**controller, "group_size": sizes[0]}
    elif controller["group_size"] not in sizes:
        raise ValueError(
            f"--ckpt.path {path} was saved at group size {controller['group_size']}, which is none of {PREFIX}group_sizes "
            f"{words(sizes)}: add it, or give a single size to go on with that"
        )
    return {**state, "controller": controller}


def _with_fitting_groups(state: dict[str, Any], args: Settings) -> dict[str, Any]:
    """Kept groups that a step of this run could not train beside its own are rolled out again, and so are running ones.

    A run that keeps no surplus has groups of one size in a step, which streaming counts on.
    """
    keeps = args.algo.dynamic_filtering_surplus == "keep" or bool(args.rollout.pool)
    sizes = args.rollout.sagc.group_sizes if keeps else [state["controller"]["group_size"]]
    needs_log_probs = args.algo.advantage.is_correction_level != "off"
    kept, put_back = [], []
    for group in state["accepted"]:
        _, _, prompt, *size, samples = group  # before 7 without its size: its samples, as no group had lost any
        fits = (size or [len(samples)])[0] in sizes and all(
            _is_like_new(sample, needs_log_probs) for sample in samples
        )
        if fits:
            kept.append(group)
        else:
            put_back.append(list(Prompt(*prompt)._replace(must_finish=True)))
    running = []
    for group in state.get("running", []):
        _, _, prompt, size, _ = group["group"]
        if args.rollout.pool and size in sizes and has_log_probs(group) <= {needs_log_probs}:
            running.append(group)
        else:
            put_back.append(list(Prompt(*prompt)._replace(must_finish=True)))
    return {**state, "accepted": kept, "running": running, "returned": [*put_back, *state["returned"]]}


def _is_like_new(sample: dict[str, Any], needs_log_probs: bool) -> bool:
    """Whether a saved sample has what the samples of this run have; a micro-batch of both cannot be made else."""
    if "tokens_T" not in sample:  # of an earlier format
        return False
    has_score = (sample["score"] is None) == (sample["reward"] is None)
    return has_score and (sample["log_probs_T"] is not None) == needs_log_probs
