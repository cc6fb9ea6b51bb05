"""Data files of `taskbull doctor`."""
