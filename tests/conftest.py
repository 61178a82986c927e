"""What all tests share: saves are made in the foreground, unless a test asks for an agent."""

import os

os.environ.setdefault("HOLDFAST_BACKGROUND", "off")
