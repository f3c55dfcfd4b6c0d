"""The group-size controller; it is written in openrlhf_sagc/decisions/controller.py."""

from openrlhf_sagc.decisions.controller import StragglerAwareGroupController as StragglerAwareGroupController
