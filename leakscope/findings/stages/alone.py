"""What of one rank is asked again when it is judged with the others, and its heaps are gone?"""

from __future__ import annotations

from leakscope.findings.categories import alive_at_end, garbage_of, summary
from leakscope.findings.compare_ranks import held_at_last
from leakscope.findings.counts.growth import also_grows
from leakscope.findings.memory.account import account_of
from leakscope.findings.memory.device_oom import device_failures
from leakscope.findings.memory.oom import shortage_of
from leakscope.findings.peak.drag import drag
from leakscope.findings.stages.case import JudgedRank, RankCase
from leakscope.findings.workers.ledger import loaders_of


def judged_alone(case: RankCase) -> JudgedRank:
    """All that the stages over the ranks need of one that has gone through its own."""
    rank = case.rank
    named: dict[str, tuple[int, ...]] = {}
    for finding in case.findings:
        named[finding.fingerprint] = (*named.get(finding.fingerprint, ()), *finding.storages.get(rank.number, ()))
    return JudgedRank(
        number=rank.number,
        findings=case.findings,
        unjudged=case.unjudged,
        open_cases=case.open_cases,
        account=account_of(
            case.looks,
            case.balances,
            case.groups,
            tuple(zip(case.candidates, case.became, strict=True)),
            tuple(zip(case.arrays, case.arrays_became, strict=True)),
            named,
        ),
        summary=summary(rank, case.leaking),
        held=held_at_last(rank),
        garbage=garbage_of(rank),
        listed=alive_at_end(rank),
        shortage=shortage_of(rank),
        device_failures=device_failures(rank),
        drag=drag(rank),
        loaders=loaders_of(rank),
        also_grows=also_grows(rank, case.warmup, case.thresholds.counted),
    )
