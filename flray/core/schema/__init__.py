"""Configuration sections, hyper-parameters, names, and errors of one line."""
