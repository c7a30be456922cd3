"""Named cursors, losses and single records through the client."""

from typing import Any

import pytest

from topics.client import CursorShown, Loss, RecordShown
from topics.errors import CursorMoved, EpochMismatch, InvalidRequest, NotFound


def test_a_cursor_is_put_shown_listed_and_deleted(client: Any, topic: str) -> None:
    """NC1, NC2"""
    epoch = (client.append(topic, [{"data": n} for n in range(5)]), client.state(topic).epoch)[1]
    made = client.put_cursor(topic, "mail", 3, epoch=epoch)
    assert isinstance(made, CursorShown)
    assert (made.name, made.seq, made.lag, made.lost, made.created) == ("mail", 3, 2, 0, True)
    assert client.put_cursor(topic, "mail", 4, if_seq=3).created is False
    with pytest.raises(CursorMoved) as moved:
        client.put_cursor(topic, "mail", 5, if_seq=None)
    assert moved.value.detail["seq"] == 4
    with pytest.raises(EpochMismatch):
        client.put_cursor(topic, "mail", 5, epoch=epoch + 1)
    with pytest.raises(InvalidRequest):
        client.put_cursor(topic, "mail", 6)
    client.put_cursor(topic, "audit:1", 0, if_seq=None)
    shown = client.cursor(topic, "mail")
    assert (shown.seq, shown.created, shown.seconds_until_loss) == (4, None, None)
    assert [(one.name, one.lag) for one in client.cursors(topic, page_size=1)] == [("audit:1", 5), ("mail", 1)]
    assert client.delete_cursor(topic, "mail").deleted is True
    assert client.delete_cursor(topic, "mail").deleted is False
    with pytest.raises(NotFound):
        client.cursor(topic, "mail")


def test_losses_totals_and_records(client: Any, topic: str) -> None:
    """LS1, LS2, RC1"""
    client.put_topic(topic, cap_records=3)
    client.append(topic, [{"data": n, "tag": f"t{n}", "meta": {"n": n}} for n in range(1, 6)])
    (loss,) = client.losses(topic)
    assert isinstance(loss, Loss) and (loss.gap_from, loss.gap_to, loss.reason) == (1, 2, "cap")
    assert len(client.losses(topic, limit=1)) == 1
    client.delete_records(topic, before_seq=4)
    state = client.state(topic)
    totals = (state.written_total, state.lost_total, state.expired_total, state.deleted_total)
    assert (totals, state.seconds_until_loss is None) == ((5, 2, 0, 1), False)
    shown = client.record(topic, 5)
    assert isinstance(shown, RecordShown) and shown.epoch == state.epoch
    assert (shown.record.value, shown.record.tag, shown.record.meta_value) == (5, "t5", {"n": 5})
    for seq, reason in {1: "lost", 3: "deleted", 6: "not_written"}.items():
        with pytest.raises(NotFound) as caught:
            client.record(topic, seq)
        assert caught.value.detail["reason"] == reason


def test_live_seqs_come_as_runs(client: Any, topic: str) -> None:
    """LV1"""
    client.put_topic(topic, cap_records=5)
    client.append(topic, [{"data": n, "tag": "ab"[n % 2]} for n in range(1, 8)])
    client.delete_records(topic, match="a", before_seq=7)
    found = client.live(topic)
    assert found.live == [(3, 3), (5, 5), (7, 7)]
    assert [(lost.gap_from, lost.gap_to, lost.reason) for lost in found.lost] == [(1, 2, "cap")]
    assert client.live(topic, 3, last=5, epoch=found.epoch).live == [(5, 5)]
