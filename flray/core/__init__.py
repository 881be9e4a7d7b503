"""Flat parameters, the algorithm interface, addressed randomness."""
