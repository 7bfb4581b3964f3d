"""Where the results of a study come from: `provenance.json` in its folder.

    registration  {sha256, date, text, before_first_run}: the docstring of the study's file, in
                  which question, measure, tests and stopping rule are written down; null if it has
                  none
    amendments    [{name, sha256, date, text}]: every later text, and why it was changed
    sessions      [{started, ended, revision, clean}]: each start of the command that computed
                  something; `revision` of the code and whether its checkout was unchanged are null
                  outside a checkout, `ended` if the command was killed

Dates are in UTC. Without an amendment, a changed registration is refused once a run has begun.
"""

import contextlib
import datetime
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from experiments import measurements
from experiments.run import store as files
from experiments.run.reading import read_json
from experiments.text.errors import UserError

FILE = "provenance.json"


def register(root: Path, text: str, begun: bool, amendment: str | None = None) -> None:
    """Keeps the text of a registration, or checks it against the one kept.

    Args:
      root: the study's folder.
      text: of the registration; empty if there is none.
      begun: whether a run of the study has begun.
      amendment: why the text has changed since.

    Raises:
      UserError: the text has changed since the first run began and no amendment says why, or one
        does and the text has not changed.
    """
    found = read_json(root / FILE)
    now = {"sha256": hashlib.sha256(text.encode()).hexdigest(), "date": _now(), "text": text}
    if found is None or not begun:
        registration = {**now, "before_first_run": not begun} if text else None
        found = {"registration": registration, "amendments": [], "sessions": []}
    else:
        latest = [found["registration"] or {"text": ""}, *found["amendments"]][-1]
        if text != latest["text"] and amendment:
            found["amendments"].append({"name": amendment, **now})
        elif text != latest["text"]:
            raise UserError(
                f"workdir={root}: the registration, the docstring of the study's file, has changed "
                "since its first run began; restore it, or say why with --amendment=WHY"
            )
        elif amendment and amendment != latest.get("name"):
            raise UserError(f"amendment={amendment!r}: the registration has not changed")
    files.write_file(root / FILE, found)


@contextlib.contextmanager
def session(root: Path) -> Iterator[None]:
    """Records the revision of the code, the beginning and, however it ends, the end of its body."""
    found = files.read_file(root / FILE)
    found["sessions"].append({"started": _now(), "ended": None, **measurements.revision()})
    files.write_file(root / FILE, found)
    try:
        yield
    finally:
        found["sessions"][-1]["ended"] = _now()
        files.write_file(root / FILE, found)


def of_study(root: Path) -> Mapping[str, Any] | None:
    """What `study.json` holds of it, without the texts; None for a study of an older version."""
    found = read_json(root / FILE)
    if found is None:
        return None

    def brief(text: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        return text and {name: text[name] for name in text if name != "text"}

    return {
        **found,
        "registration": brief(found["registration"]),
        "amendments": list(map(brief, found["amendments"])),
    }


def sentences(found: Mapping[str, Any]) -> list[str]:
    """What a page says about it; none for a study of an older version.

    Args:
      found: the content of `study.json`.
    """
    about = found.get("provenance")
    if not about:
        return []
    known, sessions = about["registration"], about["sessions"]
    said = ["Nothing was registered before it was run."]
    if known:
        when = "before" if known["before_first_run"] else "after"
        said = [f"Registered on {known['date']}, {when} the first run: SHA-256 {known['sha256']}."]
    said += [
        f"Amended on {one['date']} ({one['name']}): SHA-256 {one['sha256']}."
        for one in about["amendments"]
    ]
    if sessions:
        ended = sessions[-1]["ended"] or "not ended"
        code = dict.fromkeys(
            f"{one['revision'] or 'unknown'}{'' if one['clean'] is not False else ' with changes'}"
            for one in sessions
        )
        when = f"from {sessions[0]['started']} to {ended}"
        said.append(f"Computed {when}, revision {', '.join(code)}.")
    return said


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
