"""ramet: an inference server and engine for language models.

The public Python API is `Engine`, `SamplingParams` and `__version__`. Importing this package imports nothing else:
attributes are loaded when first used, so `import ramet` and `ramet --help` stay instant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ramet.engine_api import Engine
    from ramet.types import SamplingParams

    __version__: str

__all__ = ["Engine", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "Engine":
        from ramet.engine_api import Engine

        value: Any = Engine
    elif name == "SamplingParams":
        from ramet.types import SamplingParams

        value = SamplingParams
    elif name == "__version__":
        value = _version()
    else:
        raise AttributeError(f"module 'ramet' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("ramet")
    except PackageNotFoundError:  # running from a source tree that was never installed
        return "0.0.0+source"
