"""PPO with actors in other processes and on Ray clusters: they learn what 02_ppo_fast learns, even if actors die."""

import math
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from lib.actors import fleet
from lib.errors import UsageError
from running import (
    ENVIRONMENT,
    PROJECT,
    assignments,
    checkpoint_of,
    contents,
    episodes_of,
    folder,
    result_of,
    resuming,
    scalars_of,
    start,
    wait_for,
    workers_of,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_workers_find_the_fakes")]

FAST, ACTORS = (Path("distributed", f"{name}.py") for name in ("02_ppo_fast", "03_ppo_actors"))
SMALL = assignments("envs=4", "rollout=16", "minibatch=32", "checkpoint_every=128", "anneal_steps=400")
POLE = ("--env-id", "CartPole-v1", *SMALL, "--seed", 3, "--quiet")
LAST = 1280  # the step at which long runs stop


@pytest.mark.parametrize("script", [FAST.with_name("01_ppo.py"), FAST, ACTORS, FAST.with_name("04_ppo_memory.py")])
def test_a_limit_within_the_first_rollout_holds_and_every_scalar_has_a_value(answer, tmp_path, script):
    inline = ("--engine", "inline", "--actors", 2) if script == ACTORS else ()
    answer(
        script, "--env-id", "CartPole-v1", *SMALL[:-2], *inline, "--quiet", "--stop-after", 40, "--runs-dir", tmp_path
    )
    assert result_of(folder(tmp_path))["steps"] == 64
    scalars = scalars_of(folder(tmp_path))
    assert "train/replay_ratio" not in scalars
    assert not any(math.isnan(value) for values in scalars.values() for _, value in values)


def test_the_script_learns_what_02_ppo_fast_learns(ends, tmp_path):
    for script, *options in ((FAST,), (ACTORS, "--actors", 4)):
        code, _, errors = ends(script, *POLE, *options, "--stop-after", 640, "--runs-dir", tmp_path / script.stem)
        assert code == 0, errors
    path, plain = (folder(tmp_path / script.stem) for script in (ACTORS, FAST))
    found, expected = checkpoint_of(path)["net"], checkpoint_of(plain)["net"]
    # Rounding depends on the number of states in a forward pass.
    assert all(torch.allclose(found[name].float(), expected[name].float(), atol=1e-4) for name in expected)
    assert episodes_of(path) == episodes_of(plain)
    scalars = scalars_of(path)
    assert {value for _, value in scalars["train/policy_lag"]} == {0.0}
    assert scalars["train/lost_episodes"][-1] == (640, 0.0)


def test_asynchronous_actors_have_a_lag_that_is_logged(ends, tmp_path):
    code, _, errors = ends(ACTORS, *POLE, "--async", "--stop-after", 640, "--runs-dir", tmp_path)
    assert code == 0, errors
    path = folder(tmp_path)
    assert max(value for _, value in scalars_of(path)["train/policy_lag"]) > 0.0
    # A resumed run may use another engine.
    assert ends(ACTORS, *resuming(path), "--stop-after", 896, "--engine", "inline")[0] == 0
    assert result_of(path)["steps"] >= 896


@pytest.mark.parametrize(
    ("number", "learning", "code"),
    [
        pytest.param(signal.SIGINT, False, 130, marks=pytest.mark.long),
        (signal.SIGTERM, True, 143),
        pytest.param(signal.SIGKILL, True, -9, marks=pytest.mark.long),
    ],
)
def test_a_run_on_ray_ends_all_processes_that_it_has_started(tmp_path, number, learning, code):
    process = start(ACTORS, *POLE, "--engine", "ray", "--runs-dir", tmp_path)
    wait_for(lambda: list(tmp_path.glob("*/checkpoints/step-*.pt" if learning else "*/params.json")), process)
    if not learning:
        wait_for(lambda: any("raylet" in each.name() for each in psutil.Process(process.pid).children()), process)
        time.sleep(3)  # by then, the actors or Ray itself are starting
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == code, stderr
    assert "Traceback" not in stderr
    _, alive = psutil.wait_procs(children, timeout=90)  # agents of a killed Ray try for a minute to report its death
    assert [each for each in alive if each.is_running() and each.status() != psutil.STATUS_ZOMBIE] == []


def test_a_run_whose_actors_hang_ends_on_a_signal(tmp_path):
    options = ("--env-id", "fakes:Failing-hang-v0", *SMALL, "--set", "epochs=1", "--quiet", "--patience", 1000)
    process = start(ACTORS, *options, "--runs-dir", tmp_path)
    wait_for(
        lambda: any(
            int(row[1]) > 320 for file in tmp_path.glob("*/episodes.csv") for row in episodes_of(file.parent)[1:]
        ),
        process,
    )
    time.sleep(1)  # by then, the actors hang
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143
    assert time.monotonic() - began < 20
    assert checkpoint_of(folder(tmp_path))["source"]["steps_done"] == 384


def test_a_run_goes_on_if_actors_are_killed_at_any_time(tmp_path):
    process = start(ACTORS, *POLE, "--stop-after", LAST, "--runs-dir", tmp_path)
    rng = np.random.default_rng(1)
    wait_for(lambda: list(tmp_path.glob("*/checkpoints/step-*.pt")), process)
    killed = 0
    while process.poll() is None and killed < 4:
        victims = workers_of(process)
        if len(victims) == 2:
            victims[rng.integers(2)].kill()
            killed += 1
        time.sleep(rng.uniform(0.1, 0.5))
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    lost = (stdout + stderr).count("of CartPole-v1, seed 3) was killed by SIGKILL. Its unfinished episodes are lost")
    assert killed >= lost >= killed - 1 > 0
    assert scalars_of(folder(tmp_path))["train/lost_episodes"][-1][1] >= 2 * (lost - 1)
    rows = (folder(tmp_path) / "actors.csv").read_text().splitlines()[1:]
    assert sum(int(row.split(",")[6]) for row in rows) == lost


def test_a_number_of_actors_that_does_not_divide_the_environments_is_refused_in_one_line(refused, tmp_path):
    said = refused(ACTORS, "--actors", 3, "--runs-dir", tmp_path)
    assert re.fullmatch(r"error: 3 actors cannot share 16 environments.* 1, 2, 4, 8, 16\n", said)


def test_a_resume_whose_actors_are_refused_changes_no_file(ends, refused, tmp_path, monkeypatch):
    options = (*POLE, "--engine", "inline", "--runs-dir", tmp_path)
    assert ends(ACTORS, *options, "--stop-after", 512)[0] == 0
    path = folder(tmp_path)
    before = contents(path)

    def refuse(*_, **__):
        raise UsageError("2 processes need more memory")

    monkeypatch.setattr(fleet, "ProcessEngine", refuse)
    again = ("--engine", "process", "--stop-after", 1024)
    assert "need more memory" in refused(ACTORS, *resuming(path), *again)
    assert contents(path) == before
    assert "need more memory" in refused(ACTORS, *POLE, "--runs-dir", tmp_path, *again)
    assert folder(tmp_path) == path  # a new run leaves no folder


# A cluster in network, process and mount namespaces of its own: nothing outside can be reached, and nothing is left.
CLUSTER = """
ip link set lo up
head() { ray start --head --port=6399 --temp-dir=$PWD/ray --node-ip-address=127.0.0.1 "$@" >>ray.txt 2>&1; }
node() { ray start --address=127.0.0.1:6399 --node-ip-address=127.0.0.1 "$@" >>ray.txt 2>&1; }
ppo() { "${PPO[@]}" --runs-dir $1 "${@:2}" >$1.txt 2>&1; echo $? >$1.code; }
saved() { until compgen -G "$1/*/checkpoints/step-*" >/dev/null; do sleep 0.1; done; }
PPO=("$@")
"""


@pytest.fixture
def cluster():
    """Function (commands, *options) that runs commands of bash in a folder and namespaces of their own.

    The commands `head` and `node` start a node of a Ray cluster, and `ppo NAME` runs the script with these options.
    Return the script's output and exit code by NAME, and the folder.
    """
    with tempfile.TemporaryDirectory() as name:  # pytest's folder is too long for the names of Ray's sockets
        work = Path(name)

        def run_commands(commands, *options):
            env = {name: value for name, value in ENVIRONMENT.items() if not name.startswith("RAY_")}
            env |= {"HOME": name, "RAY_TMPDIR": f"{name}/ray", "RAY_USAGE_STATS_ENABLED": "0"}
            namespaces = ["unshare", "--map-root-user", "-nmpf", "--mount-proc", "--kill-child"]
            script = [sys.executable, PROJECT / ACTORS, *POLE, "--engine", "ray", "--actors", 2, *options]
            command = [*namespaces, "bash", "-c", CLUSTER + commands, "bash", *map(str, script)]
            subprocess.run(command, cwd=work, env=env, check=True, timeout=400)
            codes = {path.stem: int(path.read_text()) for path in work.glob("*.code")}
            return {name: ((work / f"{name}.txt").read_text(), code) for name, code in codes.items()}, work

        yield run_commands


needs_namespaces = pytest.mark.skipif(
    subprocess.run(["unshare", "-rnmpf", "--mount-proc", "true"], capture_output=True).returncode != 0,
    reason="needs namespaces",
)


NODES = """
head --num-cpus=0
ppo run --address 127.0.0.1:6399 &
learner=$!
sleep 8
node --num-cpus=2
saved run
kill -9 $(pgrep -n raylet)
until [ $(grep -c "unfinished episodes are lost" run.txt) = 2 ]; do sleep 0.1; done
touch lost
node --num-cpus=2
until [ -n "$(find run -name 'step-*' -newer lost)" ]; do sleep 0.1; done
pkill -9 -f "^[^ ]*python .*--runs-dir run"
wait $learner
for _ in $(seq 100); do pgrep -f ^ray::Worker >/dev/null || break; sleep 0.1; done
! pgrep -f ^ray::Worker
"""


@pytest.mark.long
@needs_namespaces
def test_a_run_waits_for_room_and_goes_on_after_the_loss_of_a_node_and_its_actors_end_if_it_is_killed(cluster):
    output, code = cluster(NODES)[0]["run"]
    assert code == 137, output
    assert output.count("the run differs from one without a loss") == 1


REFUSALS = """
mkdir -p right/.ray wrong/.ray elsewhere
printf %064d 1 >right/.ray/auth_token
printf %064d 2 >wrong/.ray/auth_token
export RAY_AUTH_MODE=token
HOME=$PWD/right head --num-cpus=2
HOME=$PWD/wrong ppo wrong --address 127.0.0.1:6399
HOME=$PWD/right ppo nothing --address 127.0.0.1:6398
RAY_ADDRESS=127.0.0.1:6399 HOME=$PWD/right ppo right --stop-after 512
test $(pgrep -c raylet) = 1
"""


@pytest.mark.long
@needs_namespaces
def test_ray_address_is_respected_and_a_cluster_that_cannot_be_joined_is_reported_in_one_line(cluster):
    ended, work = cluster(REFUSALS)
    assert ended["right"][1] == 0, ended["right"]
    for name, message in (
        ("wrong", "error: this process cannot join the Ray cluster at 127.0.0.1:6399: .*auth_token"),
        ("nothing", "error: this process cannot join the Ray cluster at 127.0.0.1:6398: .*"),
    ):
        output, code = ended[name]
        assert code == 2
        assert re.fullmatch(rf"((This cpu|Run folder:) .*\n)*{message}.*\n", output), output
        assert list((work / name).glob("20*")) == []  # no run folder is left behind
