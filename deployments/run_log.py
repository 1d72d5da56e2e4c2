"""What the log of a run says about a fault that a person can act on: one line, and no traceback."""

from __future__ import annotations

import logging
import re

from infra.errors import RatchetError

FAULTS = (RatchetError, OSError)
"""What the command line ends with in one line; an OSError is a disk, a file or an address."""
RUN_LOGGERS = ("prefect", "prefect.flow_runs", "prefect.task_runs", "prefect.flow_engine", "prefect.task_engine")
"""A filter sees what is logged at its own logger only, so each one needs it."""


class OneLineFaults(logging.Filter):
    """Takes the traceback from the record of a fault and names its kind; the command line says the text, once.

    Prefect logs a fault in each task and flow that it passes through, and again in the state that each ends in.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Always True: records are shortened, none is dropped."""
        fault = record.exc_info[1] if record.exc_info else None
        if isinstance(fault, FAULTS):
            kind = type(fault).__name__
            said = record.getMessage().replace(repr(fault), kind).replace(str(fault), kind)
            record.msg, record.args = " ".join(said.split()), ()
            record.exc_info, record.exc_text = None, None
        elif (ended := _ENDED.match(record.getMessage())) and any(ended[1] in _kinds(f) for f in FAULTS):
            record.msg, record.args = f"Finished in state Failed ({ended[1]})", ()
        return True


_ENDED = re.compile(r"Finished in state Failed\(.{,80}?exception:? (\w+): ", re.DOTALL)


def _kinds(kind: type[BaseException]) -> set[str]:
    return {kind.__name__}.union(*(_kinds(each) for each in kind.__subclasses__()))


def shorten_faults() -> None:
    """Install the filter where runs are logged. May be repeated; Prefect's own set-up keeps it."""
    for name in RUN_LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(each, OneLineFaults) for each in logger.filters):
            logger.addFilter(OneLineFaults())
