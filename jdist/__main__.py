"""The ``jdist`` command."""

import sys

from jdist.commands import main

if __name__ == "__main__":
    sys.exit(main())
