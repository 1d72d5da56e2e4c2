"""A rollback drill in the ledger, which a campaign asks for before it starts (spec P1)."""

from __future__ import annotations

import time

from infra.store import ObjectStore
from tasks.shared.ledger import ledger_key
from tasks.shared.records import LedgerEntry, Target


def put_drill(store: ObjectStore, target: Target, milliseconds: float = 12.0) -> None:
    """As `ratchet drill` leaves it."""
    entry = LedgerEntry(
        entry_id="drill", at_s=time.time(), target=target, campaign="", kind="drill", drill_ms=milliseconds
    )
    store.put_record_once(ledger_key(entry), entry)
