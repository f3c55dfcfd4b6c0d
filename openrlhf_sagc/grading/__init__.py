"""Grading of mathematical answers: what a response answers, and whether it equals the reference."""
