"""`python -m flray` is the command `flray`."""

from flray.cli import main

main()
