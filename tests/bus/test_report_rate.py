"""One node that sends reports without end takes neither time nor log lines from the others."""

from nodesmith.bus import report_rate
from nodesmith.bus.connection import Bus
from nodesmith.bus.report_rate import BURST, PER_SECOND, ReportRate
from nodesmith.bus.reports import NodeReports, ReportHub
from nodesmith.contracts.nats.messages import Outcome, Progress, Result
from tests.agent.waiting import until
from tests.bus.conftest import StartNode


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_sender_has_a_burst_and_then_a_rate() -> None:
    rate = ReportRate(clock=(clock := Clock()))
    assert sum(rate.admits("a") for _ in range(3000)) == BURST
    assert rate.admits("b")
    clock.now += 1
    assert sum(rate.admits("a") for _ in range(3000)) == PER_SECOND
    clock.now += 3600
    assert sum(rate.admits("a") for _ in range(3000)) == BURST


def test_invented_senders_are_forgotten(monkeypatch) -> None:
    monkeypatch.setattr(report_rate, "_MOST_SENDERS", 10)
    rate = ReportRate()
    assert all(rate.admits(number) for number in range(100))
    assert len(rate._senders) == 10


async def test_flood_of_progress_drops_no_outcome_and_no_report_of_another_node(
    control: Bus, start_node: StartNode, monkeypatch
) -> None:
    monkeypatch.setattr(report_rate, "BURST", 5.0)
    monkeypatch.setattr(report_rate, "PER_SECOND", 0.0)
    hub, progress, outcomes = ReportHub(control), list[Progress](), list[Outcome]()
    hub.on_progress(progress.append)
    hub.on_unclaimed_outcome(outcomes.append)
    await hub.start()
    hostile, other = await start_node("hostile"), await start_node("other")
    for number in range(50):
        await NodeReports(hostile, "hostile").progress(Progress(op_id=f"op-{number}", bytes_done=number))
    await NodeReports(other, "other").progress(Progress(op_id="op"))
    await NodeReports(hostile, "hostile").outcome(Outcome(op_id="op-1", result=Result.FAILED))
    await until(lambda: outcomes and any(each.node_id == "other" for each in progress))
    assert sum(each.node_id == "hostile" for each in progress) == 5
