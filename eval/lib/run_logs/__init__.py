"""Runs of OpenRLHF as their logs and exports hold them: TensorBoard's files, W&B's exports, the output of a console."""
