"""A Kafka broker of the tests' own on loopback: started, killed and started again; and what it
needs beside it, a schema registry's few addresses and certificates.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from support.components import KAFKA
from support.ports import free_ports
from support.processes import WAIT_SECONDS

USER, PASSWORD = "reader", "right"


class Broker:
    """One node that is broker and controller, with listeners for plain, SASL and TLS clients."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        plain, controller, sasl, tls = free_ports(4)
        self.address, self.sasl, self.tls = (f"127.0.0.1:{port}" for port in (plain, sasl, tls))
        self.certificate = folder / "certificate.pem"
        key = _certificate(self.certificate)
        listeners = {"PLAINTEXT": plain, "SASL_PLAINTEXT": sasl, "SSL": tls}
        named = ",".join(f"{name}://127.0.0.1:{port}" for name, port in listeners.items())
        one = ("offsets.topic", "transaction.state.log")
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"{named},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": named,
            "listener.security.protocol.map": ",".join(
                ["CONTROLLER:PLAINTEXT", *(f"{name}:{name}" for name in listeners)]
            ),
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
                "org.apache.kafka.common.security.plain.PlainLoginModule required"
                f' user_{USER}="{PASSWORD}";'
            ),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": _one_line(self.certificate.read_text()),
            "ssl.keystore.key": _one_line(key),
            "log.dirs": folder / "data",
            "auto.create.topics.enable": False,
            "group.initial.rebalance.delay.ms": 0,
            "log.cleaner.backoff.ms": 100,
            "transaction.state.log.min.isr": 1,
            **{f"{topic}.replication.factor": 1 for topic in one},
            **{f"{topic}.num.partitions": 1 for topic in one},
        }
        self._settings = folder / "server.properties"
        self._settings.write_text("".join(f"{n}={v}\n" for n, v in settings.items()))
        self._process: subprocess.Popen[bytes] | None = None
        self._java("kafka.tools.StorageTool", "format", "-t", "A" * 21 + "Q", "-c").wait()

    def _java(self, *words: str) -> subprocess.Popen[bytes]:
        command = ["java", "-Xmx384m", "-XX:+UseSerialGC", "-cp", f"{KAFKA / 'broker'}/*", *words]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [*command, str(self._settings)],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )

    def start(self) -> None:
        """Start, and return when it answers."""
        self._process = self._java("kafka.Kafka")
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            assert self._process.poll() is None, (self.folder / "log").read_text()[-2000:]
            with suppress(KafkaException):
                self.admin = AdminClient(self.client)
                self.admin.list_topics(timeout=1)
                return
        raise TimeoutError((self.folder / "log").read_text()[-2000:])

    def kill(self) -> None:
        """As a power cut."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(WAIT_SECONDS)
            self._process = None

    @property
    def client(self) -> dict[str, Any]:
        """A client's settings; what it would print goes nowhere."""
        return {"bootstrap.servers": self.address, "log_level": 0}

    def create(self, topic: str, partitions: int = 1, **config: str) -> str:
        """A topic of a new name."""
        settings = {name.replace("_", "."): value for name, value in config.items()}
        made = self.admin.create_topics([NewTopic(topic, partitions, config=settings)])
        made[topic].result(WAIT_SECONDS)
        self._wait_for(topic, partitions)
        return topic

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        self.admin.delete_topics([topic])[topic].result(WAIT_SECONDS)
        while topic in self.admin.list_topics(timeout=5).topics:
            time.sleep(0.05)

    def grow(self, topic: str, partitions: int) -> None:
        """More partitions."""
        more = self.admin.create_partitions([NewPartitions(topic, partitions)])
        more[topic].result(WAIT_SECONDS)
        self._wait_for(topic, partitions)

    def _wait_for(self, topic: str, partitions: int) -> None:
        """Until the broker tells its clients of all of them."""
        while True:
            found = self.admin.list_topics(timeout=WAIT_SECONDS).topics.get(topic)
            leaders = [p.leader for p in found.partitions.values()] if found else []
            if len(leaders) == partitions and -1 not in leaders:
                return
            time.sleep(0.05)

    def expire(self, topic: str, before: int, partition: int = 0) -> None:
        """Delete the first records of a partition."""
        gone = self.admin.delete_records([TopicPartition(topic, partition, before)])
        gone[TopicPartition(topic, partition)].result(WAIT_SECONDS)

    def send(
        self, topic: str, values: Iterable[Any], partition: int = 0, key: bytes | None = None
    ) -> None:
        """Values, as JSON unless they are bytes already or None."""
        settings = {"queue.buffering.max.messages": 2_000_000, "message.max.bytes": 10_000_000}
        producer = Producer(self.client | settings)
        for value in values:
            body = value if value is None or isinstance(value, bytes) else json.dumps(value)
            producer.produce(topic, body, key, partition, on_delivery=_arrived)
        assert producer.flush(WAIT_SECONDS) == 0

    def settle(self, topic: str) -> None:
        """Until what was committed can be read: a broker says so a moment before."""
        partitions = self.admin.list_topics(topic, timeout=WAIT_SECONDS).topics[topic].partitions
        wanted = {TopicPartition(topic, number): OffsetSpec.latest() for number in partitions}  # type: ignore[no-untyped-call]
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            ends = []
            for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
                asked = self.admin.list_offsets(wanted, isolation_level=level)
                ends.append([asked[p].result(WAIT_SECONDS).offset for p in wanted])
            if ends[0] == ends[1]:
                return
            time.sleep(0.02)
        raise TimeoutError("a transaction stays open")

    def read(self, topic: str) -> list[tuple[Any, Any]]:
        """All committed messages of a topic, by partition."""
        settings: dict[str, Any] = {"group.id": "test", "auto.offset.reset": "earliest"}
        settings |= {"enable.partition.eof": True, "isolation.level": "read_committed"}
        consumer = Consumer(self.client | settings)
        partitions = consumer.list_topics(topic, timeout=WAIT_SECONDS).topics[topic].partitions
        self.settle(topic)
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        found, left = [], set(partitions)
        while left:
            for message in consumer.consume(10_000, 1.0):
                if message.error() is None:
                    found.append((message.partition(), message.offset(), message))
                else:
                    left.discard(message.partition())
        consumer.close()
        return [(m.key(), m.value()) for *_, m in sorted(found, key=lambda part: part[:2])]


def _arrived(error: Any, _: Any) -> None:
    assert error is None, error


@contextmanager
def running(folder: Path) -> Iterator[Broker]:
    """A broker that is ended whatever happens."""
    broker = Broker(folder)
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()


class Registry:
    """The addresses of a schema registry that clients use."""

    def __init__(self) -> None:
        self.schemas: list[str] = []
        self.refuses: int | None = None  # with this code
        self.bad: dict[int, int] = {}  # numbers, with the code that each is answered with
        self.asked: list[int] = []
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                last = self.path.split("?")[0].rsplit("/", 1)[1]
                number = int(last) if last.isdigit() else 0
                registry.asked.append(number)
                if number in registry.bad:
                    code = registry.bad[number]
                    self._answer(code, {"error_code": code, "message": ""})
                elif registry.refuses is not None:
                    self._answer(registry.refuses, {"error_code": registry.refuses, "message": ""})
                elif last == "config":
                    self._answer(200, {"compatibilityLevel": "BACKWARD"})
                elif not 1 <= number <= len(registry.schemas):
                    self._answer(404, {"error_code": 40403, "message": "not found"})
                else:
                    self._answer(200, {"schema": registry.schemas[number - 1]})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self._answer(200, {"id": registry.add(json.loads(json.loads(body)["schema"]))})

            def _answer(self, code: int, body: Mapping[str, Any]) -> None:
                data = json.dumps(body).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *words: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def add(self, schema: Any) -> int:
        """A schema's number."""
        text = json.dumps(schema)
        if text not in self.schemas:
            self.schemas.append(text)
        return self.schemas.index(text) + 1

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()


def _certificate(file: Path) -> str:
    """A certificate for loopback that is its own authority; returns its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()


def _one_line(text: str) -> str:
    return text.strip().replace("\n", " \\\n ")
