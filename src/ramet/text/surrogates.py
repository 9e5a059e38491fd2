"""Unpaired surrogates: JSON can spell them, Python strings can hold them, no UTF-8 text can."""

from __future__ import annotations

from ramet.errors import RequestError


def refuse_unpaired(text: str, field: str | None = None) -> None:
    """Raise `RequestError` naming `field` and the place if `text` has an unpaired surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        where = f"{field}: " if field else ""
        raise RequestError(
            f"{where}unpaired surrogate \\u{ord(text[error.start]):04x} at character {error.start}, half a character",
            field=field,
        ) from None
