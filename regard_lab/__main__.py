"""`python -m regard_lab`: the command line, for environments whose scripts are not on the path."""

from regard_lab.cli import main

if __name__ == "__main__":
    main()
