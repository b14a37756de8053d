"""`python -m pilotage.cli` is `pilotage`."""

from pilotage.cli.application import main

if __name__ == "__main__":
    main()
