"""``python -m ramify`` is ``ramify``."""

import sys

from ramify.cli.main import main

sys.exit(main())
