"""The format of what a checkpoint holds of the scheduler, checked before any of it is loaded."""

# Add 1 whenever the entries of a `state_dict` of the scheduler or its parts change, or those of a record in it.
FORMAT = 3


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
            "the checkpoint was saved without --rollout.sagc.enable or --rollout.tail_batching.enable: resume without "
            "them, or start from its model"
        )
    found = state.get("format", "missing")
    if found != FORMAT:
        raise ValueError(
            f"--ckpt.path {path} holds the scheduler's state in another format: samples_generator.format is {found}, and "
            f"this version of openrlhf_sagc loads {FORMAT}: resume with the version that saved it, or start from its model"
        )
