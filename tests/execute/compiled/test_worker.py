"""Faults of a compiler in another process come back as refusals, and it can be given up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch._inductor as inductor

from torchjanus.core.errors import Refused
from torchjanus.execute.compiled import worker
from torchjanus.execute.compiled.worker import Compilation, Request


def test_a_fault_of_the_compiler_is_a_refusal() -> None:
    pending = Compilation([Request(b"no graph", (), {}, 1, torch.float32)])
    with pytest.raises(Refused, match="Inductor cannot compile the step"):
        pending.result(timeout=600)


def test_a_compilation_can_be_given_up() -> None:
    pending = Compilation([Request(b"no graph", (), {}, 1, torch.float32)])
    pending.cancel()
    assert pending.ready()


@pytest.mark.parametrize("fails", [False, True])
def test_instruction_sets_are_tested_only_where_compiling_without_fails(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    untested = []

    def compile_request(request: Request) -> tuple[str, tuple[()]]:
        untested.append(inductor.config.cpp.vec_isa_ok)
        if fails and untested[-1]:
            raise RuntimeError("the C++ compiler does not know an option")
        return "artifact", ()

    monkeypatch.setattr(worker, "compile_request", compile_request)
    monkeypatch.setattr(worker, "_is_used_by_aten", lambda: True)
    monkeypatch.setattr(worker, "_proven", lambda: False)
    made = worker._compiled(Request(b"", (), {}, 1, torch.float32))
    assert made == ("artifact", (), not fails)
    assert untested == ([True, None] if fails else [True])


def test_aten_tells_which_instruction_set_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_reported", lambda: [SimpleNamespace(build_macro=lambda: ["CPU_CAPABILITY_AVX512"])])
    for capability, used in (("AVX512", True), ("AVX2", False), ("DEFAULT", False)):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda capability=capability: capability)
        assert worker._is_used_by_aten() is used
    monkeypatch.setattr(worker, "_reported", list)
    assert not worker._is_used_by_aten()
