"""JSON files of a run folder. Each has a digest of its content, and a shape, which says which entries it may have."""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any

from lib.errors import UsageError
from lib.run.growing_files import SAVED
from lib.system import files
from lib.system.shapes import NUMBER, TEXT, Each, misfits

LARGEST_JSON = 100 * 10**6  # bytes
CONTROL_IN_TEXT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and newline
DIGEST = "sha256"  # entry of a JSON file with the digest of the others

FORMAT = 1  # of params.json; one more once earlier versions would misread a run. Files without an entry have format 1
SESSION = ("commit", "versions", "machine")  # required entries of a session in params.json

FILES = {"files": Each({"size": (int,), "sha256": (str, NoneType)})}  # shape of files.json

EVALUATION = {"mean": NUMBER}  # shape of evaluation.json

# Shape of params.json, whose top-level entries are required, and of result.json.
PARAMS = {
    "script": TEXT,
    "game": TEXT,
    "seed": (int,),
    "hyperparameters": {"env_name": TEXT, "run_name": TEXT, "stop_reward": (*NUMBER, NoneType)},
    "knobs": {},
    "sessions": [
        {
            "argv": [TEXT],
            "started": TEXT,
            "commit": (str, NoneType),
            "versions": Each(TEXT),
            "machine": Each((*NUMBER, str, bool)),
        }
    ],
}
# Shape of a further entry of params.json, which runs of earlier versions and runs without checkpoints lack.
NETWORK = {"network": {"class": TEXT, "layers": Each(TEXT), "builder": (str, NoneType)}}
RESULT = {
    "stopped": TEXT,
    "steps": (int,),
    "iterations": (int,),
    "episodes": (int,),
    "mean_100": (*NUMBER, NoneType),
    "best_mean": (*NUMBER, NoneType),
    "reached": Each(Each(NUMBER)),
    "seconds": NUMBER,
    "this_process": {
        "seconds": NUMBER,
        "training_steps": (int,),
        "training_seconds": NUMBER,
        "warm_up_steps_per_second": (*NUMBER, NoneType),
        "steps_per_second": (*NUMBER, NoneType),
        "last_1000_steps_per_second": (*NUMBER, NoneType),
        "parts": Each(NUMBER),
    },
    "evaluation": EVALUATION,
    "files": Each(SAVED),
}


def read_params(path: Path) -> dict[str, Any]:
    """Read a run's params.json.

    Raises:
        UsageError: if the file cannot be read, or an entry is missing or has the wrong type.
    """
    file = path / "params.json"
    content = read_json(file, PARAMS | NETWORK)
    missing = sorted(set(PARAMS) - set(content))
    if missing:
        raise UsageError(f"{file} lacks {', '.join(missing)}; it was not written by this project")
    lacking = sorted(set(NETWORK["network"]) - set(content.get("network", NETWORK["network"])))
    if lacking:
        raise UsageError(f"{file} lacks {', '.join(lacking)} of its network; restore it, or start a new run")
    if not content["sessions"] or any(not set(SESSION) <= set(session) for session in content["sessions"]):
        raise UsageError(f"{file} lacks sessions with {', '.join(SESSION)}; restore it, or start a new run")
    return content


def read_json(file: Path, shape: Any) -> dict[str, Any]:
    """Read a JSON object of a run folder, and verify its digest. The first runs have none, and can still be played.

    Args:
        file: path of the file.
        shape: PARAMS, RESULT, or another shape; see lib.system.shapes.

    Raises:
        UsageError: if the file is damaged or was written by another version, such as a newer one.
        OSError: if it cannot be read.
    """
    try:
        if file.stat().st_size > LARGEST_JSON:
            raise ValueError(f"it is larger than {LARGEST_JSON / 1e6:.0f} MB")
        content = json.loads(
            file.read_text(encoding="utf-8"), parse_float=_finite, parse_constant=_finite, parse_int=_whole
        )
        json.dumps(content, ensure_ascii=False).encode()  # UnicodeEncodeError is a ValueError
        if _escaped(content) != content:
            raise ValueError("it contains control characters")
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file} cannot be read: {error}. {_advice(file)}") from error
    if not isinstance(content, dict):
        raise UsageError(f"{file} does not hold a JSON object; it was not written by this version of the project")
    digest = content.pop(DIGEST, None)
    if digest is not None and digest != _digest(content):
        raise UsageError(f"{file} was changed after it was written. {_advice(file)}")
    if content.get("format", FORMAT) not in range(1, FORMAT + 1):
        raise UsageError(
            f"{file} was written by a newer version of this project: its format is {content['format']!r}, and this "
            f"version reads formats up to {FORMAT}. Update the project, or give a run or model of this version"
        )
    wrong = sorted(misfits(content, shape))
    if wrong:
        raise UsageError(
            f"{file}: wrong type of {', '.join(wrong)}; it was edited, or another version wrote it. {_advice(file)}"
        )
    return content


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object atomically, with a digest of its content that `read_json` verifies.

    Bytes of a path that are not UTF-8 are written as "?", and control characters as escapes.
    """
    text = json.dumps(content, default=str, allow_nan=False, ensure_ascii=False)
    plain = _escaped(json.loads(text.encode(errors="replace")))
    files.write(file, json.dumps(plain | {DIGEST: _digest(plain)}, indent=2) + "\n")


def as_json(value: Any) -> str:
    """Return a value as it stands in params.json, which tells True from 1 and has lists for tuples."""
    return json.dumps(value, default=str)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is not a finite number")
    return number


def _whole(text: str) -> int:
    if abs(number := int(text)) >= 2**63:
        raise ValueError(f"{text[:20]}... is too large")
    return number


def _escaped(content: Any) -> Any:
    r"""Return the content of a JSON file with control characters replaced by escapes such as \x1b."""
    if isinstance(content, str):
        return CONTROL_IN_TEXT.sub(lambda match: f"\\x{ord(match[0]):02x}", content)
    if isinstance(content, dict):
        return {_escaped(name): _escaped(value) for name, value in content.items()}
    return [_escaped(each) for each in content] if isinstance(content, list) else content


def _advice(file: Path) -> str:
    return "Restore it" if file.name == "params.json" else "Restore it, or delete it; the rest of the run is kept"
