"""transformers and the hub's client without their bars and reports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' progress bars and reports: what is wrong with a model, an error of ours says."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    with without_bars():
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(verbosity)
            if bars:
                logging.enable_progress_bar()


@contextmanager
def without_bars() -> Iterator[None]:
    """A context without a progress bar where nothing is fetched."""
    from huggingface_hub import utils

    shown = not utils.are_progress_bars_disabled()
    utils.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            utils.enable_progress_bars()
