"""`python -m onthejob` is `onthejob`."""

from onthejob.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
