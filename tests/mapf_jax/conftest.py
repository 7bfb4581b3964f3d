"""Makes what the tests beside it share importable."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
