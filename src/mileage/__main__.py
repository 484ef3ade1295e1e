"""`python -m mileage` is the command line."""

from mileage.cli import main

main()
