"""`python -m kvcore`."""

import sys

from kvcore.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
