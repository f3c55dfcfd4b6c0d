"""What a run needs of its files: its OpenRLHF, folders that no second run writes to, whole checkpoints, and the data they were made with."""
