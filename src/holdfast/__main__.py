"""`python -m holdfast`: the command line."""

from holdfast.cli.main import run

if __name__ == "__main__":
    run()
