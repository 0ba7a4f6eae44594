"""``python -m qsa_group``."""

import sys

from qsa_group.cli import main

sys.exit(main())
