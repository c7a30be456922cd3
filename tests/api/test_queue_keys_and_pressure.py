"""Queues among the rest: keys, pressure, metrics, routers."""

from threading import Thread

from tests.api.clients.transcript import Client, Reply, ok, refused
from tests.api.clients.worker import Worker, jobs, redrive
from tests.api.conftest import Start
from topics.testing.disk import MemoryDisk

# --- keys, pressure, metrics


def test_each_call_needs_its_scopes(start: Start) -> None:
    """AU6, A.1"""
    server = start(api_keys="all,r:read,w:write,rw:rw,d:delete,wd:write+delete")
    api = Client(server.address)
    api.with_key("all").create("q", type="queue", dead_letter="dead")
    allowed = {
        "claim": {"all", "rw"},
        "ack": {"all", "w", "rw", "wd"},
        "nack": {"all", "w", "rw", "wd"},
        "extend": {"all", "w", "rw", "wd"},
        "redrive": {"all", "wd"},
    }
    bodies = {"claim": {"node": "w"}, "redrive": {}, "extend": {"node": "w", "seqs": [1], "lease_ms": 100}}
    for call, keys in allowed.items():
        body = bodies.get(call, {"node": "w", "seqs": [1]})
        for key in ("all", "r", "w", "rw", "d", "wd"):
            reply = api.with_key(key).post(f"/v0/topics/q/{call}", body)
            assert reply.status == (200 if key in keys else 403), (call, key, reply)
        refused(api.post(f"/v0/topics/q/{call}", body), 401, "unauthorized")
    for key in ("all", "r", "w", "rw", "d", "wd"):
        assert api.with_key(key).get("/v0/topics/q/leases").status == (200 if key in ("all", "r", "rw") else 403)


def test_names_outside_the_keys_prefixes_are_forbidden(start: Start) -> None:
    """AU8: the dead-letter topic of a redrive is one of them."""
    server = start(api_keys="all,a::a.")
    api, limited = Client(server.address, "all"), Client(server.address, "a")
    for name, dead in (("b.q", "b.dead"), ("a.q", "b.dead"), ("a.ok", "a.dead")):
        api.create(name, type="queue", dead_letter=dead)
    for call, body in (("claim", {"node": "w"}), ("ack", {"node": "w", "seqs": [1]}), ("redrive", {})):
        refused(limited.post(f"/v0/topics/b.q/{call}", body), 403, "forbidden")
    refused(limited.post("/v0/topics/a.q/redrive", {}), 403, "forbidden")
    refused(limited.get("/v0/topics/b.q/leases"), 403, "forbidden")
    assert redrive(limited, "a.ok")["redriven"] == 0
    assert ok(limited.post("/v0/topics/a.q/claim", {"node": "w"}))["count"] == 0


def test_a_claim_waits_under_pressure_and_the_other_calls_do_not(start: Start) -> None:
    """PR7, CV11"""
    server = start()
    api = Client(server.address)
    api.create("q", type="queue")
    worker = Worker(api, "q")
    jobs(worker, 5)
    worker.claim(3)

    def press(level: float) -> None:
        server.pressure = level
        server.run(server.server.pressure.measure)

    press(1.0)
    assert worker.ack(1)["acked"] == worker.nack(2)["nacked"] == worker.extend(3)["extended"] == 1
    refused(api.post("/v0/topics/none/claim", {"node": "w"}), 404, "topic_not_found")
    replies: list[Reply] = []
    claim = Thread(target=lambda: replies.append(api.post("/v0/topics/q/claim", {"node": "w"})))
    claim.start()
    server.until(lambda: server.server.pressure.parked_total == 1)
    server.run(lambda: server.clock.advance(300))
    press(0.0)
    claim.join()
    assert replies[0].json["claimed"][0]["$seq"] == 2
    assert replies[0].json["performance"]["throttle_wait_ms"] == 300
    press(1.0)
    claim = Thread(target=lambda: replies.append(api.post("/v0/topics/q/claim", {"node": "w"})))
    claim.start()
    server.until(lambda: server.server.pressure.parked_total == 2)
    server.until(lambda: server.clock.waits)
    server.advance(1000)
    claim.join()
    refused(replies[1], 429, "throttled")
    press(0.0)


def test_metrics_count_queues_and_active_leases(start: Start) -> None:
    """HM3, HM5"""
    server = start()
    api = Client(server.address)
    api.create("q", type="queue", lease_ms=1000)
    api.create("log")
    worker = Worker(api, "q")
    jobs(worker, 5)
    worker.claim(3)
    metrics = api.metrics()
    assert (metrics["queue_topics"], metrics["queue_leases_in_flight"]) == (1, 3)
    text = api.get("/v0/metrics").body.decode()
    assert 'topics_topic_queue_ready{topic="q"} 2\n' in text and 'topics_topic_queue_in_flight{topic="q"} 3\n' in text
    assert 'topics_topic_queue_ready{topic="log"}' not in text
    server.advance(1001)
    assert api.metrics()["queue_leases_in_flight"] == 0


# --- routers


def test_a_claim_sees_what_was_written_upstream(api: Client, topic: str) -> None:
    """DF9, S30: over a chain of two routers; and a copy carries no delay."""
    names = [topic, f"{topic}.2", f"{topic}.3"]
    for name in names:
        api.create(name, type="queue")
    for source, dest in ((names[0], names[1]), (names[1], names[2])):
        ok(api.put(f"/v0/routers/{source}->{dest}", {"source": source, "dest": dest}), 201)
    api.write_records(topic, {"data": 1, "delay_ms": 1000}, {"data": 2})
    assert [job["data"] for job in Worker(api, names[2]).claim(9)["claimed"]] == [1, 2]
    assert Worker(api, topic).seqs(9) == [2]


def test_an_ack_of_a_copy_is_replayed_against_the_same_job(start: Start) -> None:
    """RT21, S4, QU18"""
    disk = MemoryDisk()
    api = Client(start(disk=disk).address)
    api.create("q", type="queue", leases_durable=True)
    ok(api.put("/v0/routers/r", {"source": "s", "dest": "q"}), 201)
    api.write("s", 1, 2, 3)
    worker = Worker(api, "q")
    assert worker.seqs(2) == [1, 2]
    worker.ack(2)
    again = Worker(Client(start(disk=disk.kill()).address), "q")
    assert again.counts() == (1, 1, 0)
    assert (again.ack(1)["acked"], again.seqs(9)) == (1, [3])
