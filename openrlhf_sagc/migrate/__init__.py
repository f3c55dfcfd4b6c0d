"""Writes old launch scripts anew: `python -m openrlhf_sagc.migrate SCRIPT`."""
