"""What tensorboardX has written."""

import pytest


def read(file):
    """The events of one file, in their order."""
    events = pytest.importorskip("tensorboardX.event_file_writer")
    content, found = file.read_bytes(), []
    while content:  # Records of: length, its checksum, the event, its checksum.
        length = int.from_bytes(content[:8], "little")
        found.append(events.event_pb2.Event.FromString(content[12 : 12 + length]))
        content = content[16 + length :]
    return found
