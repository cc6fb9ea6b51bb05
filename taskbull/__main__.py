"""Lets `python -m taskbull` be the command line."""

from taskbull.cli import main

main()
