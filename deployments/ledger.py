"""`ratchet ledger`: lists, shows and exports the trajectory."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from deployments.report.html import write_text_atomically
from infra.connect import open_store
from infra.errors import BadInput
from tasks.shared.ledger import rejected_markdown
from tasks.shared.records import LedgerEntry


def all_entries() -> list[tuple[str, LedgerEntry]]:
    """(time, entry), oldest first."""
    store = open_store()
    entries = [store.get_record(i.key, LedgerEntry) for i in store.list("ledger/") if i.key.endswith(".json")]
    entries.sort(key=lambda e: e.at_s)
    return [(datetime.fromtimestamp(e.at_s, UTC).strftime("%Y-%m-%d %H:%M:%S"), e) for e in entries]


def show(entry_id: str) -> str:
    """One entry with its full record as JSON."""
    entries = [e for _, e in all_entries()]
    found = [e for e in entries if e.entry_id == entry_id] or [e for e in entries if e.entry_id.startswith(entry_id)]
    if len(found) != 1:
        named = ": " + ", ".join(e.entry_id for e in found[:5]) if found else ""
        raise BadInput(
            f"{entry_id!r} names {len(found)} entries{named}",
            remedy="`ratchet ledger list` shows the ids, `ratchet ledger export` writes all records",
        )
    entry = found[0]
    record = json.loads(open_store().get(entry.record_key)) if entry.record_key else None
    return json.dumps({"entry": entry.model_dump(mode="json"), "record": record})


def export(to: Path) -> str:
    """Everything as JSON Lines, or the rejected hypotheses as Markdown, by the file's ending."""
    entries = [e for _, e in all_entries()]
    if to.suffix == ".md":
        write_text_atomically(to, rejected_markdown(entries))
    elif to.suffix == ".jsonl":
        write_text_atomically(to, "".join(e.model_dump_json() + "\n" for e in entries))
    else:
        raise BadInput(f"{to} ends neither in .jsonl nor in .md")
    return f"{len(entries)} entries written to {to}"
