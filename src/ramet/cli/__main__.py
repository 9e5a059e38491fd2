"""`python -m ramet.cli`: the same as the `ramet` script."""

import sys

from ramet.cli.main import main

sys.exit(main())
