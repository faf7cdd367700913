"""The compiling process: when it is begun, and what it does before it is asked."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from dtorch.inductor import compiling

SRC = Path(__file__).parents[2] / "src"


@pytest.mark.parametrize("there", [False, True])
def test_the_process_is_begun_early_where_nothing_can_be_known(
    there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "dtorch"
    if there:
        folder.mkdir()
    monkeypatch.setattr(compiling.stored, "folder", lambda: folder)
    compiler, begun = compiling._Compiler(), []
    monkeypatch.setattr(compiler.process, "begin", lambda: begun.append(len(done)))
    done: list[object] = []

    class Work:
        def compile_with(self, compiler: object) -> None:
            done.append(self)

    compiler.start(Work())
    compiler._queue.put(None)
    assert compiler._thread is not None
    compiler._thread.join(10)
    assert (begun, len(done)) == ([] if there else [0], 1)


@pytest.mark.compiler
def test_what_the_process_prepares_is_not_done_again(tmp_path: Path) -> None:
    code = """
    import subprocess
    from dtorch.inductor import worker
    worker.prepare()
    from torch._inductor import cpu_vec_isa
    run, ran = subprocess.Popen.__init__, []
    subprocess.Popen.__init__ = lambda self, args, *a, **k: ran.append(list(args)) or run(self, args, *a, **k)
    cpu_vec_isa.pick_vec_isa()
    print([args for args in ran if any(str(arg).endswith(".cpp") for arg in args)])
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": str(SRC), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout == "[]\n", ran.stderr
    assert list(tmp_path.rglob("*.so"))
