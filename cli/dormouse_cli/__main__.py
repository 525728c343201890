"""`python -m dormouse_cli`."""

from dormouse_cli.main import main

if __name__ == "__main__":
    main()
