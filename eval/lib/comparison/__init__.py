"""The parts of compare.py: the arms, their training runs, their logs, statistics, report and plots."""
