"""The tables of the papers as data, the command of every cell, and whether what it gives here says the same."""
