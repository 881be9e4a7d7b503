"""A network as a function of flat vectors."""
