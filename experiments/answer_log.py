"""JSON lines that grow record by record, and that a kill at any moment leaves readable."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from experiments.errors import UserError
from experiments.store import json_line


def read_log(path: Path) -> list[dict[str, Any]]:
    """The complete records of a log; none where there is no file. Nothing is written.

    Raises:
      UserError: a line other than the last is no JSON object.
    """
    return _read(path)[0]


class AnswerLog:
    """A log that is opened to be continued. A line that a kill cut in two is dropped.

    Args:
      path: the file; made if needed.

    Attributes:
      path: the file.
      records: what was there when it was opened.

    Raises:
      UserError: a line other than the last is no JSON object.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.records, whole = _read(path)
        self.path = path
        self._file = path.open("ab")
        self._file.truncate(whole)

    def append(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Adds records; when this returns a kill of the process does not take them away."""
        self._file.write("".join(map(json_line, records)).encode())
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()


def _read(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The complete records and how many bytes they take."""
    if not path.exists():
        return [], 0
    lines = path.read_bytes().splitlines(keepends=True)
    records, whole = [], 0
    for number, line in enumerate(lines, 1):
        record = _record(line)
        if record is None and number < len(lines):
            raise UserError(f"{path}:{number}: not a JSON object; mend or remove the file")
        if record is not None:
            records.append(record)
            whole += len(line)
    return records, whole


def _record(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
