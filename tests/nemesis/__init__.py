"""A nemesis for the whole of taskbull: real processes, real faults, and a ledger that knows better.

`nox -s nemesis` runs it; README.md tells what it does and how to read a violation.
"""
