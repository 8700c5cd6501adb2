"""`python -m flightlog.cli`: the same as the `flightlog` command."""

from __future__ import annotations

import sys

from flightlog.cli import main

if __name__ == "__main__":
    sys.exit(main())
