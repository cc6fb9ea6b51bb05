"""The commands, grouped in modules. `cli/main.py` lists them."""
