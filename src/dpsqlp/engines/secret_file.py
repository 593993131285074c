"""The secret: in the environment, or in a file that only its owner can read, outside the state."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from dpsqlp.entropy.secret import SECRET_BYTES, Secret
from dpsqlp.errors import SecretError
from dpsqlp.state.storage import TEMPORARY

SECRET_VARIABLE = "DPSQLP_SECRET"  # noqa: S105  its name


def load_secret(path: Path, storage_is_new: bool) -> bytes:
    """The secret from the environment or its file. For a new state a missing secret is made."""
    text = os.environ.get(SECRET_VARIABLE)
    if text is None and path.exists():
        if path.is_dir():
            raise SecretError(f"The secret {path} is a folder. Give --secret a file.")
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise SecretError(f"The secret {path} can be read by others. Run: chmod 600 {path}")
        text = path.read_text()
    if text is None:
        if not storage_is_new:
            raise SecretError(
                f"The secret {path} is missing, and the state was made with it. Bring it back, or"
                f" set {SECRET_VARIABLE}; a lost secret cannot be replaced inside open windows."
            )
        return _make_secret(path)
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) != SECRET_BYTES:
        raise SecretError(
            f"A secret is {2 * SECRET_BYTES} hexadecimal digits; the value of {path} or"
            f" {SECRET_VARIABLE} is not. Restore the original."
        )
    return key


def _make_secret(path: Path) -> bytes:
    """Make a secret, durable before it is used."""
    key = Secret.new().key
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=path.name, suffix=TEMPORARY, dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(key.hex() + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)  # unlike a rename, never replaces a file
    finally:
        os.unlink(temporary)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return key


def check_secret_outside_state(secret: Path, state: Path) -> None:
    """Refuse a secret inside the state."""
    if secret.resolve().is_relative_to(state.resolve()):
        raise SecretError(
            f"The secret {secret} would lie inside the state {state}. With both, the noise can be"
            " removed. Keep the secret elsewhere."
        )
