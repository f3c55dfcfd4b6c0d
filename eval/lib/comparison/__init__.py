"""The parts of compare.py that train: the arms, their tasks and runs, launch scripts as arms, and what their logs hold."""
