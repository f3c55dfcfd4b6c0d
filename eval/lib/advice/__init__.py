"""The parts of advise.py: what a trace shows, the switches, their replay, the verdict, the screen; and logs without a trace."""
