"""One module for each command: its SUMMARY and EXAMPLES, `add_arguments(parser)`, and `run(arguments, out)`."""
