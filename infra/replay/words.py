"""Common English words that byte-pair tokenizers hold as one token each, with the space before them."""

from __future__ import annotations

_TEXT = """
time year people way day man thing woman life child world school state family student group country problem
hand part place case week company system program question work government number night point home water room
mother area money story fact month lot right study book eye job word business issue side kind head house
service friend father power hour game line end member law car city community name team minute idea body
information back parent face others level office door health person art war history party result change
morning reason research girl guy moment air teacher force education foot boy age policy process music market
sense nation plan college interest death experience effect use class control field development role effort
rate heart drug show leader light voice wife police mind return price
"""

WORDS: tuple[str, ...] = tuple(_TEXT.split())
