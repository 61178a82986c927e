"""`python -m holdfast.agent DESCRIPTOR PID`: started by the training process, not by hand."""

import sys

from holdfast.agent.main import run

if __name__ == "__main__":
    run(sys.argv[1:])
