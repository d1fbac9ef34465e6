"""What has been compiled is found again in another run, and only what nobody else can have written is run."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from torchjanus.execute.compiled import store
from torchjanus.execute.compiled.store import (
    VARIABLE,
    NotPrivate,
    Product,
    Store,
    fingerprint,
    folder_in_use,
    store_in_use,
)

PRODUCT = Product(b"artifact" * 10_000, ("condition",), {"ab/cd.so": b"library"}, {"ef/gh.so": b"probe"})


def test_what_is_kept_is_found_by_another_who_opens_the_folder(tmp_path: Path) -> None:
    Store(tmp_path / "kept").put("key", PRODUCT)
    other = Store(tmp_path / "kept")
    assert other.get("key") == PRODUCT
    assert other.get("another key") is None
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700


def test_a_damaged_artifact_is_not_there_and_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = Store(tmp_path)
    kept.put("key", PRODUCT)
    (file,) = tmp_path.rglob("*.val")
    contents = bytearray(file.read_bytes())
    contents[len(contents) // 2] ^= 1
    file.write_bytes(contents)
    assert kept.get("key") is None
    assert "damaged" in caplog.text
    caplog.clear()
    assert kept.get("key") is None and not caplog.text  # it has been removed
    kept.put("key", PRODUCT)
    assert kept.get("key") == PRODUCT


def test_a_file_that_is_gone_is_not_there(tmp_path: Path) -> None:
    kept = Store(tmp_path)
    kept.put("key", PRODUCT)
    for file in tmp_path.rglob("*.val"):
        file.unlink()
    assert kept.get("key") is None


class Bomb:
    def __reduce__(self) -> object:
        return os._exit, (1,)


def test_what_was_not_written_by_us_is_not_unpickled(tmp_path: Path) -> None:
    kept = Store(tmp_path)
    import diskcache  # type: ignore[import-untyped]

    diskcache.Cache(str(tmp_path)).set("key", Bomb())
    assert kept.get("key") is None
    kept._cache.set("key", b"0" * 32 + pickle.dumps(Bomb()))
    assert kept.get("key") is None


def test_its_size_is_bounded(tmp_path: Path) -> None:
    kept = Store(tmp_path, most_bytes=1 << 20)
    for number in range(30):
        kept.put(str(number), Product(os.urandom(100_000)))
        kept.get("0")
    assert kept.bytes < 2 << 20
    assert kept.get("0") is not None and kept.get("29") is not None and kept.get("1") is None


def test_folders_that_others_may_write_to_are_not_used(tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    for folder in (open_to_all, open_to_all / "within"):
        with pytest.raises(NotPrivate, match="others may write to"):
            Store(folder)
    link = tmp_path / "link"
    link.symlink_to(open_to_all)
    with pytest.raises(NotPrivate):
        Store(link)


def test_without_a_folder_that_can_be_used_there_is_no_store_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file" / "folder"))
    with caplog.at_level(logging.WARNING):
        assert store_in_use() is None and store_in_use() is None
    assert caplog.text.count("compiled artifacts are not kept") == 1 and VARIABLE in caplog.text


def test_the_folder_is_the_users_switch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, "")
    assert folder_in_use() is None and store_in_use() is None
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert folder_in_use() == tmp_path
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if sys.platform == "linux":
        assert folder_in_use() == tmp_path / "torchjanus"


def test_keys_tell_apart_what_is_compiled_and_for_what() -> None:
    assert fingerprint(("a", "bc")) == fingerprint(("a", "bc"))
    assert len({fingerprint(parts) for parts in (("a", "bc"), ("ab", "c"), ("abc",), ("abc", ""))}) == 4
    surroundings = store._surroundings()
    store._surroundings.cache_clear()
    try:
        os.environ["TORCHINDUCTOR_SOMETHING"] = "1"
        assert store._surroundings() != surroundings
    finally:
        del os.environ["TORCHINDUCTOR_SOMETHING"]
        store._surroundings.cache_clear()
    assert store._surroundings() == surroundings


def test_that_something_has_passed_its_trial_is_kept_for_those_who_open_the_folder(tmp_path: Path) -> None:
    private = tmp_path / "cache"
    private.mkdir(mode=0o700)
    first, other = (store.Verdict(store.Store(private), key) for key in ("a", "b"))
    assert not first.kept()
    for word in ("passed", "leads", "trails"):
        first.keep(word)
        assert store.Verdict(store.Store(private), "a").kept() == word and not other.kept()
    first.keep("hearsay")
    assert not first.kept()


PROGRAM = """
    import sys, torch, torchjanus

    torch.manual_seed(0)
    net = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    @torchjanus.speculate(executor="auto")
    def step(x):
        optimizer.zero_grad()
        loss = net(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for number in range(4):
        step(torch.ones(5, 4))
    step.wait()
    (entry,) = step.entries
    entry.engine.wait()
    losses = [step(torch.ones(5, 4)).item() for number in range(20)]
    for number in range(100_000):  # on a busy machine trials are deferred
        if any("agreed" in note for note in entry.engine.notes):
            break
        step(torch.ones(5, 4))
    print(losses[-1])
    print([note for note in entry.engine.notes if note.startswith(("inductor", "not"))])
"""


@pytest.mark.slow
def test_a_second_run_takes_what_the_first_has_compiled(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(PROGRAM))
    private = tmp_path / "cache"
    private.mkdir(mode=0o700)
    said = []
    for number in range(2):
        environment = {
            **os.environ,
            VARIABLE: str(private),
            "TORCHINDUCTOR_CACHE_DIR": str(
                tmp_path / f"inductor-{number}"
            ),  # as after a night in which /tmp was emptied
            "PYTHONPATH": os.pathsep.join(part for part in sys.path if part),
        }
        done = subprocess.run(
            [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.splitlines())
    (first, cold), (second, warm) = said
    assert float(first) == pytest.approx(float(second), rel=1e-6)  # replay makes fewer of the second run's calls
    assert "inductor compiled the graph in" in cold and "inductor loaded what an earlier run had compiled in" in warm
    assert "agreed with replay on 3 calls" in cold
    assert "agreed with replay on a call, as it did in an earlier run" in warm
    assert not list((tmp_path / "inductor-1").rglob("*.main.cpp.tmp"))
