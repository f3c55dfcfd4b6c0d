from made_up_trees import process  # noqa: F401
