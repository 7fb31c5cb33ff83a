"""`python -m kvcore`."""

import sys

from kvcore.cli import main

if __name__ == "__main__":
    sys.exit(main())
