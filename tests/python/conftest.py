"""What the tests share: problems as NumPy arrays, and a judge that is written from docs/semantics.md alone."""
import sys

import numpy as np
import pytest

sys.path.insert(0, __file__.rsplit("/", 1)[0])


def pytest_configure(config):
    config.addinivalue_line("markers", "cuda: needs a CUDA device, and a torch that reaches it")


def no_device():
    """Why tests that are marked `cuda` cannot run here, or None."""
    try:
        import torch
    except ImportError:
        return "no torch"
    import tamis
    if not tamis.build_info()["cuda"]:
        return "a build without CUDA"
    return None if torch.cuda.is_available() else "no device"


def pytest_collection_modifyitems(config, items):
    reason = no_device() if any("cuda" in item.keywords for item in items) else None
    for item in items:
        if reason and "cuda" in item.keywords:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def rng():
    return np.random.default_rng(20261130)
