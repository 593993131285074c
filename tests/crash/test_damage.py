"""Damage, strangers and lost things: refused with what to do, or recovered; nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from crash.crashes import Worker, begun, copied, outputs, steps
from dpsqlp.engines.local import LocalEngine
from dpsqlp.errors import DpsqlpError, SecretError, SourceError, StateError
from dpsqlp.state.sealed import FORMAT
from dpsqlp.state.storage import LocalStorage
from state.sealed_storages import committed, opened_folder
from support.fake_clock import START, FakeClock
from support.pipelines import MINUTE, Record, made, run_all, script, write
from support.processes import until

pytestmark = pytest.mark.slow

QUARTER = 15 * MINUTE


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as process:
        yield process


@pytest.fixture(scope="module")
def finished(worker: Worker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline that ran half its triggers, beside a whole run of the same instance."""
    pipeline = begun(tmp_path_factory.mktemp("damage"), 1)
    whole = copied(pipeline, "whole")
    assert worker.run(whole) == 0
    renames = [n for n, kind in enumerate(steps(whole), 1) if kind == "rename manifest.json"]
    half = copied(pipeline, "half")
    assert worker.run(half, kill_at=renames[3] + 2) == -signal.SIGKILL
    assert len(outputs(half)) == 3
    return half


def opened(folder: Path) -> LocalEngine:
    return made(folder, (folder / "query.sql").read_text())


def refused(folder: Path, kind: type[DpsqlpError], words: str) -> None:
    """Opening and running is refused, and changes nothing: the undamaged state still runs."""
    before = contents(folder)
    with pytest.raises(kind, match=words):
        opened(folder).step()
    assert contents(folder) == before


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def recovers(folder: Path, worker: Worker) -> None:
    assert worker.run(folder) == 0
    assert outputs(folder) == outputs(folder.parent / "whole")


def secret_of(folder: Path) -> bytes:
    return bytes.fromhex((folder / "secret").read_text())


def state_files(folder: Path) -> list[Path]:
    """The files that the state consists of; a crash may have left others."""
    storage = LocalStorage(folder / "state" / "t")
    manifest = committed(storage.root, secret_of(folder))
    names = {"pipeline.json", "manifest.json", "intent.json"} | manifest.files()
    assert names <= set(storage.list())
    return [storage.root / name for name in sorted(names)]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "torn": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "flipped": lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
}


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_files_are_refused(how: str, finished: Path, worker: Worker) -> None:
    """Whatever file it is; with the file as it was the run goes on to the same output."""
    folder = copied(finished, how)
    files = state_files(folder)
    assert {path.suffix for path in files} >= {".delta", ".snapshot", ".arrow"}
    for path in files:
        data = path.read_bytes()
        path.write_bytes(DAMAGE[how](data))
        refused(folder, StateError, "is damaged.*Nothing was released or changed.*Restore")
        path.write_bytes(data)
    recovers(folder, worker)


def test_missing_files_are_refused(finished: Path, worker: Worker) -> None:
    """A missing delta, release, manifest or description: nothing is swept, begun or run again."""
    folder = copied(finished, "missing")
    for path in state_files(folder):
        if path.name == "intent.json":
            continue
        data = path.read_bytes()
        path.unlink()
        refused(folder, StateError, "missing.*Restore the whole folder")
        path.write_bytes(data)
    intent = folder / "state" / "t" / "intent.json"
    manifest = folder / "state" / "t" / "manifest.json"
    kept = manifest.read_bytes(), intent.read_bytes()
    manifest.unlink()
    intent.unlink()
    refused(folder, StateError, "manifest.json is missing.*Restore the whole folder")
    manifest.write_bytes(kept[0])
    recovers(folder, worker)  # nothing of the trigger was published: it may begin again


def test_an_older_manifest_is_refused(finished: Path, worker: Worker) -> None:
    """A manifest from a backup beside a newer intent would run published triggers again."""
    folder = copied(finished, "older")
    manifest = folder / "state" / "t" / "manifest.json"
    old = manifest.read_bytes()
    assert worker.run(folder) == 0
    shutil.copytree(finished / "state" / "t", folder / "state" / "t", dirs_exist_ok=True)
    intent = (folder.parent / "whole" / "state" / "t" / "intent.json").read_bytes()
    (folder / "state" / "t" / "intent.json").write_bytes(intent)
    assert manifest.read_bytes() == old
    refused(folder, StateError, "older than what was published.*Restore the whole folder")


def test_what_is_left_of_a_pipeline_is_refused(finished: Path, worker: Worker) -> None:
    """Only pipeline.json is left: the same noise would run over what the records are by now."""
    folder = copied(finished, "left")
    kept = contents(folder)
    for path in (folder / "state" / "t").rglob("*"):
        if path.is_file() and path.name != "pipeline.json":
            path.unlink()
    refused(folder, StateError, "manifest.json is missing.*Restore the whole folder")
    for name, data in kept.items():
        (folder / name).write_bytes(data)
    recovers(folder, worker)


def test_files_that_were_swapped_are_refused(finished: Path, worker: Worker) -> None:
    """A file under the name of another trigger, shard or purpose."""
    folder = copied(finished, "swapped")
    files = [path for path in state_files(folder) if path.name != "pipeline.json"]
    assert len({path.parent.parent.parent.name for path in files}) >= 3
    for target, source in zip(files, files[1:] + files[:1], strict=True):
        data = target.read_bytes()
        target.write_bytes(source.read_bytes())
        refused(folder, StateError, "Restore the whole folder|Use the version")
        target.write_bytes(data)
    recovers(folder, worker)


def test_files_of_another_instance_are_refused(finished: Path, worker: Worker) -> None:
    """The same query, records and secret, run for as long: every file but the description."""
    other = finished.parent / "instance"
    shutil.rmtree(other, ignore_errors=True)
    other.mkdir()
    shutil.copy(finished / "query.sql", other)
    shutil.copy(finished / "secret", other)
    assert worker.run(other) == 0
    whole = copied(finished.parent / "whole", "another")
    names = {path.relative_to(other) for path in state_files(other)}
    shared = [path for path in state_files(whole) if path.relative_to(whole) in names]
    assert len(shared) >= 5
    for path in shared:
        if path.name != "pipeline.json":
            data = path.read_bytes()
            path.write_bytes((other / path.relative_to(whole)).read_bytes())
            refused(whole, StateError, "not written under this name by this pipeline")
            path.write_bytes(data)
    opened(whole).close()


def test_a_changed_public_part_is_refused(finished: Path, worker: Worker) -> None:
    """Who writes without the secret is noticed, whatever they write."""
    folder = copied(finished, "public")
    for name, field, value in (
        ("pipeline.json", "created", 1),
        ("pipeline.json", "shards", 1),
        ("manifest.json", "trigger", None),
        ("manifest.json", "rows", 0),
    ):
        path = folder / "state" / "t" / name
        data = path.read_bytes()
        body = json.loads(data)
        public = json.loads(body["public"])
        assert public[field] != value
        text = json.dumps(public | {field: value}, sort_keys=True)
        path.write_bytes(json.dumps(body | {"public": text}).encode())
        refused(folder, StateError, "not written under this name by this pipeline")
        path.write_bytes(data)
    recovers(folder, worker)


def test_a_foreign_manifest_is_refused(finished: Path, worker: Worker) -> None:
    """The state of another instance of the very same query."""
    other = finished.parent / "other"
    shutil.rmtree(other, ignore_errors=True)
    other.mkdir()
    shutil.copy(finished / "query.sql", other)
    opened(other).step()
    folder = copied(finished, "foreign")
    manifest = folder / "state" / "t" / "manifest.json"
    kept = manifest.read_bytes()
    shutil.copy(other / "state" / "t" / "manifest.json", manifest)
    refused(folder, StateError, "not written under this name by this pipeline")
    manifest.write_bytes(kept)
    recovers(folder, worker)


def test_another_format_is_refused(finished: Path) -> None:
    """A state of a later version is left alone, or of an earlier one."""
    folder = copied(finished, "format")
    manifest = folder / "state" / "t" / "manifest.json"
    body = json.loads(manifest.read_bytes())
    for other in ({**body, "format": FORMAT + 1}, {"body": "{}", "sha256": ""}):
        manifest.write_bytes(json.dumps(other).encode())
        refused(folder, StateError, "Use the version of dpsqlp that wrote the state")


def test_secrets(finished: Path, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost, foreign, malformed or readable secret is refused; none is made in its place."""
    folder = copied(finished, "secrets")
    secret = folder / "secret"
    text = secret.read_text()
    assert secret.stat().st_mode & 0o777 == 0o600
    secret.unlink()
    refused(folder, SecretError, "missing.*Bring it back.*cannot be replaced")
    assert not secret.exists()
    monkeypatch.setenv("DPSQLP_SECRET", text)
    opened(folder).close()
    monkeypatch.delenv("DPSQLP_SECRET")
    for wrong, words, kind in (
        ("00" * 32, "secret is not the one", StateError),
        ("", "64 hexadecimal digits", SecretError),
        ("xyz", "64 hexadecimal digits", SecretError),
    ):
        secret.write_text(wrong)
        secret.chmod(0o600)
        refused(folder, kind, words)
    secret.write_text(text)
    secret.chmod(0o640)
    refused(folder, SecretError, "can be read by others. Run: chmod 600")
    secret.chmod(0o600)
    recovers(folder, worker)


def test_a_changed_query_is_refused(finished: Path, worker: Worker) -> None:
    """Another budget, filter or interval is another instance, which spends its own budget."""
    folder = copied(finished, "changed")
    query = folder / "query.sql"
    text = query.read_text()
    for old, new in (
        ("epsilon = 40", "epsilon = 41"),
        ("FROM s", "FROM s WHERE x > 0"),
        ("15 MINUTES", "30 MINUTES"),
    ):
        assert old in text
        query.write_text(text.replace(old, new))
        refused(folder, StateError, " was .* and is .*Run the original query.*its own budget")
    query.write_text(text.replace("FROM s", "FROM   s"))
    recovers(folder, worker)


def test_one_process_at_a_time(finished: Path, worker: Worker) -> None:
    """A second process is refused while the first lives, and let in when it is killed."""
    folder = copied(finished, "held")
    pid = worker.start(folder, hold=True)
    until((folder / "holds").exists, worker.process)
    refused(folder, StateError, "Another process is running.*stop that one")
    os.kill(pid, signal.SIGKILL)
    assert worker.end() == -signal.SIGKILL
    recovers(folder, worker)


@pytest.mark.parametrize("limit", [300, 900, 1700, 2600])
def test_a_full_disk_stops_the_run_and_loses_nothing(
    limit: int, finished: Path, worker: Worker
) -> None:
    """Writes that fail part way, at the state and at the sink; with room the run goes on."""
    folder = copied(finished, f"full{limit}")
    assert worker.run(folder, file_bytes=limit) == 3  # StateError: File too large
    recovers(folder, worker)


def growing(folder: Path) -> str:
    """A pipeline by the clock over a folder that grows."""
    sql = script(
        source=f"connector = 'files', path = '{folder.parent}/in/*.parquet', follow = true",
        sink="connector = 'parquet', path = 'out'",
    )
    folder.mkdir()
    (folder / "query.sql").write_text(sql)
    return sql


def arrivals(key: str) -> list[Record]:
    return [(f"u{unit}", key, 1.0, START + unit) for unit in range(20)]


def test_a_retry_reads_what_was_intended(worker: Worker, tmp_path: Path) -> None:
    """Files that arrive after the cut wait for the next trigger, also when the trigger is run
    again after a crash: equal noise on more records would show what was added."""
    pipeline = tmp_path / "begun"
    sql = growing(pipeline)
    write(tmp_path / "in" / "1.parquet", arrivals("a"))
    made(pipeline, sql, clock=FakeClock(START)).close()
    whole = copied(pipeline, "whole")
    command = {"now": START + QUARTER}
    assert worker.run(whole, **command) == 0
    kinds = steps(whole)
    killed: dict[str, int] = {}
    for number, kind in enumerate(kinds, 1):
        if number > kinds.index("sync_folder cuts") + 1 and kind.startswith(("write", "re")):
            killed.setdefault(kind, number)
    assert {"write units", "rename releases", "rename manifest.json", "write out"} <= set(killed)
    for number in killed.values():
        folder = copied(pipeline, f"killed{number}")
        assert worker.run(folder, kill_at=number, **command) == -signal.SIGKILL
    write(tmp_path / "in" / "2.parquet", arrivals("b"))
    write(tmp_path / "in" / "0.parquet", arrivals("c"))
    then = {"now": START + 2 * QUARTER}
    assert worker.run(whole, **then) == 0
    expected = outputs(whole)
    assert len(expected) == 2
    for number in killed.values():
        folder = tmp_path / f"killed{number}"
        assert worker.run(folder, **then) == 0
        assert outputs(folder) == expected, kinds[number - 1]


@pytest.mark.parametrize("what", ["changed", "gone"])
def test_a_file_that_is_not_as_intended_is_refused(
    what: str, worker: Worker, tmp_path: Path
) -> None:
    """The trigger waits for the file as it was, and then runs."""
    folder = tmp_path / "pipeline"
    sql = growing(folder)
    path = tmp_path / "in" / "1.parquet"
    write(path, arrivals("a"))
    status, data = path.stat(), path.read_bytes()
    clock = FakeClock(START)
    made(folder, sql, clock=clock).close()
    now = START + QUARTER
    kill_at = 9  # after write, sync, rename and sync_folder of the cut and of the intent
    assert worker.run(folder, now=now, kill_at=kill_at) == -signal.SIGKILL
    path.unlink()
    if what == "changed":
        write(path, arrivals("b"))
    for _ in range(2):
        assert worker.run(folder, now=now) == 2
        error = (folder / "error.txt").read_text()
        assert error.startswith(f"{SourceError.__name__}: The file {path} ")
        assert "restore the file as it was" in error
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert worker.run(folder, now=now) == 0
    assert len(outputs(folder)) == 1


def test_an_intent_holds_no_record(finished: Path) -> None:
    """It names files and times alone."""
    state = opened_folder(finished / "state" / "t", secret_of(finished))
    body = json.loads(state.get("intent.json") or b"")
    assert set(body) == {"trigger", "offsets", "left_behind", "fingerprint"}
    assert set(body["offsets"]) == {"files", "span"}
    assert body["offsets"]["span"][1] - body["offsets"]["span"][0] == QUARTER


def test_a_new_state_in_a_used_folder_is_refused(tmp_path: Path) -> None:
    """A folder with other files is no place for a state."""
    sql = script(source="connector = 'python'")
    (tmp_path / "state" / "t").mkdir(parents=True)
    (tmp_path / "state" / "t" / "notes.txt").write_text("mine")
    (tmp_path / "secret").write_text("11" * 32)
    (tmp_path / "secret").chmod(0o600)
    with pytest.raises(StateError, match="in an empty one"):
        made(tmp_path, sql)
    (tmp_path / "state" / "t" / "notes.txt").unlink()
    (tmp_path / "state" / "t" / "pipeline.json.writing").write_bytes(b"torn")
    run_all(made(tmp_path, sql, clock=FakeClock(START)), 1)
