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

from running import (
    ENVIRONMENT,
    PROJECT,
    assignments,
    checkpoint_of,
    episodes_of,
    folder,
    gone,
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


def test_the_script_learns_what_02_ppo_fast_learns(answer, tmp_path):
    for script, *options in ((FAST,), (ACTORS, "--actors", 4)):
        answer(script, *POLE, *options, "--stop-after", 640, "--runs-dir", tmp_path / script.stem)
    path, plain = (folder(tmp_path / script.stem) for script in (ACTORS, FAST))
    found, expected = checkpoint_of(path)["net"], checkpoint_of(plain)["net"]
    # Rounding depends on the number of states in a forward pass.
    assert all(torch.allclose(found[name].float(), expected[name].float(), atol=1e-4) for name in expected)
    assert episodes_of(path) == episodes_of(plain)
    scalars = scalars_of(path)
    assert {value for _, value in scalars["train/policy_lag"]} == {0.0}
    assert scalars["train/lost_episodes"][-1] == (640, 0.0)


def test_asynchronous_actors_have_a_lag_that_is_logged(answer, tmp_path):
    answer(ACTORS, *POLE, "--async", "--stop-after", 640, "--runs-dir", tmp_path)
    path = folder(tmp_path)
    assert max(value for _, value in scalars_of(path)["train/policy_lag"]) > 0.0
    # A resumed run may use another engine.
    answer(ACTORS, *resuming(path), "--stop-after", 896, "--engine", "inline")
    assert result_of(path)["steps"] >= 896


def test_a_run_on_ray_ends_all_processes_that_it_has_started(tmp_path):
    process = start(ACTORS, *POLE, "--engine", "ray", "--runs-dir", tmp_path)
    wait_for(lambda: list(tmp_path.glob("*/checkpoints/step-*.pt")), process)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 143, stderr
    assert "Traceback" not in stderr
    assert gone(child.pid for child in children)


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
    message = refused(ACTORS, "--actors", 3, "--runs-dir", tmp_path)
    assert re.fullmatch(r"error: 3 actors cannot share 16 environments.* 1, 2, 4, 8, 16\n", message)


# A cluster in network, process and mount namespaces of its own: nothing outside can be reached, and nothing is left.
CLUSTER = """
ip link set lo up
export RAY_AUTH_MODE=token HOME=$PWD/right
mkdir -p right/.ray wrong/.ray
printf %064d 1 >right/.ray/auth_token
printf %064d 2 >wrong/.ray/auth_token
ppo() { "${PPO[@]}" --runs-dir $1 "${@:2}" >$1.txt 2>&1; echo $? >$1.code; }
node() { ray start --address=127.0.0.1:6399 --node-ip-address=127.0.0.1 --num-cpus=2 >>ray.txt 2>&1; }
PPO=("$@")
ray start --head --port=6399 --temp-dir=$PWD/ray --node-ip-address=127.0.0.1 --num-cpus=0 >>ray.txt 2>&1
HOME=$PWD/wrong ppo wrong --address 127.0.0.1:6399
ppo nothing --address 127.0.0.1:6398
RAY_ADDRESS=127.0.0.1:6399 ppo run &
learner=$!
sleep 8
node
until compgen -G "run/*/checkpoints/step-*" >/dev/null; do sleep 0.1; done
kill -9 $(pgrep -n raylet)
until [ $(grep -c "unfinished episodes are lost" run.txt) = 2 ]; do sleep 0.1; done
touch lost
node
until [ -n "$(find run -name 'step-*' -newer lost)" ]; do sleep 0.1; done
pkill -9 -f "^[^ ]*python .*--runs-dir run"
wait $learner
for _ in $(seq 100); do pgrep -f ^ray::Worker >/dev/null || break; sleep 0.1; done
! pgrep -f ^ray::Worker
"""
NAMESPACES = ("unshare", "--map-root-user", "-nmpf", "--mount-proc")


@pytest.mark.long
@pytest.mark.skipif(subprocess.run([*NAMESPACES, "true"], capture_output=True).returncode != 0, reason="no namespaces")
def test_a_run_waits_for_room_on_a_cluster_goes_on_after_the_loss_of_a_node_and_its_actors_end_if_it_is_killed():
    """A cluster that it cannot join is reported in one line."""
    script = [sys.executable, PROJECT / ACTORS, *POLE, "--engine", "ray", "--actors", 2]
    with tempfile.TemporaryDirectory() as name:  # pytest's folder is too long for the names of Ray's sockets
        work = Path(name)
        env = {name: value for name, value in ENVIRONMENT.items() if not name.startswith("RAY_")}
        env |= {"RAY_TMPDIR": f"{name}/ray", "RAY_USAGE_STATS_ENABLED": "0"}
        command = [*NAMESPACES, "--kill-child", "bash", "-c", CLUSTER, "bash", *map(str, script)]
        subprocess.run(command, cwd=work, env=env, check=True, timeout=400)
        output = {path.stem: path.read_text() for path in work.glob("*.txt")}
        codes = {path.stem: int(path.read_text()) for path in work.glob("*.code")}
        assert codes == {"wrong": 2, "nothing": 2, "run": 137}, output
        for end, address in (("wrong", "127.0.0.1:6399: .*auth_token"), ("nothing", "127.0.0.1:6398: ")):
            message = rf"error: this process cannot join the Ray cluster at {address}.*"
            # Ray's C++ code may log lines of its own while the process ends.
            assert re.match(rf"((This cpu|Run folder:) .*\n)*{message}\n", output[end])
            assert list((work / end).glob("20*")) == []  # no run folder is left behind
        assert output["run"].count("the run differs from one without a loss") == 1
