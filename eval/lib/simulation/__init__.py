"""The parts of simulate.py: costs and engines, lengths, simulated training, its runs and their report."""
