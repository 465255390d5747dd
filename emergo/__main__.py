"""`python -m emergo`."""

from .cli import main

main()
