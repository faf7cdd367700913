"""`python -m dtorch` is the command `dtorch`."""

from dtorch.cli import main

if __name__ == "__main__":
    main()
