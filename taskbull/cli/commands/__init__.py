"""The commands, one module for each or for a few alike; `cli/main.py` lists them."""
