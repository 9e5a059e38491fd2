"""The toy model, written once."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import toy


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.write(tmp_path_factory.mktemp("toy") / "model")
