"""``python -m torchjanus``."""

import sys

from torchjanus.cli import main

if __name__ == "__main__":
    sys.exit(main())
