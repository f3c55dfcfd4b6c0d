"""The parts of evaluate.py: problem sets, sampling, grading, and statistics over problems."""
