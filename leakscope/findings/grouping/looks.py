"""Which looks is growth read from?"""

from __future__ import annotations

from itertools import pairwise

from leakscope.record.kinds import Occasion
from leakscope.record.model import Look, Rank

JUDGED = (Occasion.STEP, Occasion.LAST, Occasion.PEER, Occasion.BLOCK)
"""Occasions whose looks count; what is seen after the main code has returned is only listed."""


def judged_looks(rank: Rank, warmup: int) -> tuple[Look, ...]:
    """The looks that growth is read from: after warm-up, while the script's main code ran."""
    looks = [
        look
        for look in rank.looks
        if look.occasion in JUDGED and (look.step > warmup or look.occasion != Occasion.STEP)
    ]
    # a rank without steps may not have run at all between two looks that its peers' steps brought about in a row
    hurried = {id(a) for a, b in pairwise(looks) if a.occasion == b.occasion == Occasion.PEER and b.step - a.step <= 1}
    return tuple(look for look in looks if id(look) not in hurried)
