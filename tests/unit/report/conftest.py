import pandas as pd
import pytest

from handoff.report.info import RunInfo

from . import ledgers


@pytest.fixture(scope="session")
def chat() -> pd.DataFrame:
    """Two requests in five frameworks (one scenario)."""
    return ledgers.frame(ledgers.chat())


@pytest.fixture(scope="session")
def both() -> pd.DataFrame:
    """Two scenarios."""
    return ledgers.frame([*ledgers.chat(), *ledgers.short()])


@pytest.fixture(scope="session")
def info() -> RunInfo:
    return ledgers.info()
