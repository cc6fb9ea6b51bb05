"""The code samples of the documentation, run for real."""
