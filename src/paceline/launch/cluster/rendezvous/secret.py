"""The keys of a rendezvous, made from a secret that all hosts share."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import zmq
from zmq.utils import z85

from paceline.errors import UsageError
from paceline.settings import take_secret

SHORTEST = 16  # characters: nobody guesses more of them
_ADVICE = (
    "Make a secret with `openssl rand -hex 32 > FILE; chmod 600 FILE`, copy it to each host, and type: --secret FILE"
)


@dataclass(frozen=True)
class Keys:
    """The controller's CURVE keys, and the token of those that join. Nobody without the secret can join, nor pretend to
    be the controller."""

    public: bytes
    private: bytes = field(repr=False)
    token: str = field(repr=False)


def derive(secret: str) -> Keys:
    """The keys that belong to a secret: the same on every host."""
    # scrypt: whoever has recorded a handshake cannot try many secrets.
    made = hashlib.scrypt(secret.encode(), salt=b"paceline rendezvous 1", n=1 << 14, r=8, p=1, dklen=64)
    private = z85.encode(made[:32])
    return Keys(zmq.curve_public(private), private, made[32:].hex())


def read_secret(file: Path | None) -> str:
    """The secret in the file, or else in PACELINE_SECRET, which is removed from the environment. UsageError if there is
    none."""
    given = take_secret()
    if file is None and given is None:
        raise UsageError("--rendezvous needs a secret that all hosts share, and there is none.", advice=_ADVICE)
    what = "PACELINE_SECRET"
    if file is not None:
        what = f"--secret {file}"
        try:
            mode, given = file.stat().st_mode, file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{what} cannot be read: {error}.", advice=_ADVICE) from None
        if mode & 0o077:
            raise UsageError(f"{what} can be read by other accounts.", advice=f"Type: chmod 600 {file}")
    secret = (given or "").strip()
    if len(secret) < SHORTEST:
        raise UsageError(f"{what} has {len(secret)} characters, and needs at least {SHORTEST}.", advice=_ADVICE)
    return secret
