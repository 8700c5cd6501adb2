"""`python -m flightlog` is the command line."""

import sys

from flightlog.cli import main

if __name__ == "__main__":
    sys.exit(main())
