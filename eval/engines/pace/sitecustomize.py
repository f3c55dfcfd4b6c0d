"""Python imports this in every process that has this folder on its path: engines and training are paced, see pace.py."""

import pace

pace.install()
