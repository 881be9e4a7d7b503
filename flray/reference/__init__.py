"""The tables of the papers as data, the command of every cell, and verdicts on our numbers."""
