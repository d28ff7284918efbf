"""A module that asks its environment for something that is not there."""

import os

x = os.environ["NOT_THERE"]
