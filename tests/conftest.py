"""Test-wide set-up: eight host devices, so that sharding is tested on any machine.

Also makes what several folders of tests share (`local_server`) importable.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

_FLAG = "--xla_force_host_platform_device_count"
if _FLAG not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}=8".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
