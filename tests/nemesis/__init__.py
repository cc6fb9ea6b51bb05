"""Fault injection for all of taskbull: real processes, real faults, and an independent ledger.

`nox -s nemesis` runs it. README.md describes the faults, and how to read a violation.
"""
