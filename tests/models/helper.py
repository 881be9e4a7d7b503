"""A module of a user's, with state that a network changes."""

calls = 0
