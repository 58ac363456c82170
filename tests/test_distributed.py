"""PPO with actors in other processes: they learn what 02_ppo_fast learns, even if actors die."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from lib.actors import engines
from lib.actors.ray_package import check_cluster
from lib.errors import UsageError
from running import (
    ENVIRONMENT,
    PROJECT,
    assignments,
    checkpoint_of,
    contents,
    differences,
    episodes_of,
    folder,
    resuming,
    run,
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


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Folder of a run of 02_ppo_fast on CartPole."""
    runs_dir = tmp_path_factory.mktemp("plain")
    assert run(FAST, *POLE, "--stop-after", 640, "--runs-dir", runs_dir).returncode == 0
    return folder(runs_dir)


@pytest.mark.parametrize("options", [("--actors", 4), ("--engine", "ray")])
def test_the_script_learns_what_02_ppo_fast_learns(plain, tmp_path, options):
    process = run(ACTORS, *POLE, *options, "--stop-after", 640, "--runs-dir", tmp_path)
    assert process.returncode == 0, process.stderr
    found, expected = (checkpoint_of(path)["net"] for path in (folder(tmp_path), plain))
    # Rounding depends on the number of states in a forward pass.
    assert all(torch.allclose(found[name].float(), expected[name].float(), atol=1e-4) for name in expected)
    assert episodes_of(folder(tmp_path)) == episodes_of(plain)
    scalars = scalars_of(folder(tmp_path))
    assert {value for _, value in scalars["train/policy_lag"]} == {0.0}
    assert scalars["train/replay_ratio"][-1] == (640, 1.0)
    assert scalars["train/replaced"][-1] == scalars["train/dropped"][-1] == (640, 0.0)


def test_asynchronous_actors_have_a_lag_that_is_logged(tmp_path):
    process = run(ACTORS, *POLE, "--async", "--stop-after", 640, "--runs-dir", tmp_path)
    assert process.returncode == 0, process.stderr
    lags = [value for _, value in scalars_of(folder(tmp_path))["train/policy_lag"]]
    assert max(lags) > 0.0
    path = folder(tmp_path)
    # A resumed run may use another engine.
    assert run(ACTORS, *resuming(path), "--stop-after", 896, "--engine", "inline").returncode == 0
    assert json.loads((path / "result.json").read_text())["steps"] >= 896


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Folder of an uninterrupted run with two actors."""
    runs_dir = tmp_path_factory.mktemp("uninterrupted")
    assert run(ACTORS, *POLE, "--stop-after", LAST, "--runs-dir", runs_dir).returncode == 0
    return folder(runs_dir)


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGKILL])
def test_a_stopped_and_resumed_run_is_bit_for_bit_the_uninterrupted_one(uninterrupted, tmp_path, number):
    process = start(ACTORS, *POLE, "--stop-after", LAST, "--runs-dir", tmp_path)
    saved = "*/checkpoints/step-*.pt"
    wait_for(lambda: any(int(path.name[5:].split(".")[0]) > 128 for path in tmp_path.glob(saved)), process)
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 3  # two actors and the server that they are forked from
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    psutil.wait_procs(children, timeout=10)
    assert not any(child.is_running() for child in children)
    path = folder(tmp_path)
    assert run(ACTORS, *resuming(path), "--stop-after", LAST).returncode == 0
    assert differences(checkpoint_of(uninterrupted), checkpoint_of(path)) == []
    assert episodes_of(uninterrupted) == episodes_of(path)


@pytest.mark.parametrize(
    ("number", "learning", "code"),
    [
        pytest.param(signal.SIGINT, False, 130, marks=pytest.mark.long),
        pytest.param(signal.SIGTERM, True, 143, marks=pytest.mark.long),
        (signal.SIGKILL, True, -9),
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
    _, alive = psutil.wait_procs(children, timeout=10)
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


@pytest.mark.long
def test_actors_share_the_memory_of_their_imports(tmp_path):
    """If each actor imported the packages itself, 120 MB of its memory would be private."""
    command = [sys.executable, PROJECT / ACTORS, *map(str, POLE), "--runs-dir", tmp_path]
    with subprocess.Popen(command, env=ENVIRONMENT) as process:
        wait_for(lambda: list(tmp_path.glob("*/checkpoints/step-*.pt")), process)
        private = [actor.memory_full_info().uss for actor in workers_of(process)]
        process.kill()
    assert len(private) == 2
    assert max(private) < 60 * 2**20


def test_killing_actors_at_any_time_does_not_change_the_run(uninterrupted, tmp_path):
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
    assert killed >= 2
    assert (stdout + stderr).count("of CartPole-v1, seed 3) was killed by SIGKILL. It is replaced") >= killed - 1
    assert differences(checkpoint_of(uninterrupted), checkpoint_of(folder(tmp_path))) == []
    assert episodes_of(uninterrupted) == episodes_of(folder(tmp_path))


def test_an_error_of_an_environment_is_shown_with_its_place_and_the_last_checkpoint_is_kept(tmp_path):
    options = ("--env-id", "fakes:Failing-raise-v0", *SMALL, "--set", "epochs=1", "--quiet")
    process = run(ACTORS, *options, "--runs-dir", tmp_path)
    assert process.returncode == 1
    assert re.search(
        r"Actor [01] \(environments \d to \d .*, seed 1\) failed after 202 steps of its own", process.stderr
    )
    assert 'in step\n    raise RuntimeError("the paddle broke")' in process.stderr
    assert "RuntimeError: the paddle broke" in process.stderr
    assert checkpoint_of(folder(tmp_path))["source"]["steps_done"] == 384


def test_a_number_of_actors_that_does_not_divide_the_environments_is_refused_in_one_line(refused, tmp_path):
    said = refused(ACTORS, "--actors", 3, "--runs-dir", tmp_path)
    assert re.fullmatch(r"error: 3 actors cannot share 16 environments.* 1, 2, 4, 8, 16\n", said)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--actors", "0"], "'0' is not a whole number, at least 1"),
        (["--actor-cpus", "-1"], "'-1' is not a finite number, above 0"),
        (["--engine", "cloud"], "invalid choice: 'cloud'"),
        (["--async", "0"], "'0' is not a whole number, at least 1"),
    ],
)
def test_options_of_actors_out_of_range_are_refused(refused, options, message):
    assert message in refused(ACTORS, *options)


def test_a_resume_whose_actors_are_refused_changes_no_file(ends, refused, tmp_path, monkeypatch):
    options = (*POLE, "--engine", "inline", "--runs-dir", tmp_path)
    assert ends(ACTORS, *options, "--stop-after", 512)[0] == 0
    path = folder(tmp_path)
    before = contents(path)

    def refuse(*_, **__):
        raise UsageError("2 processes need more memory")

    monkeypatch.setitem(engines.ENGINES, "process", refuse)
    again = ("--engine", "process", "--stop-after", 1024)
    assert "need more memory" in refused(ACTORS, *resuming(path), *again)
    assert contents(path) == before
    assert "need more memory" in refused(ACTORS, *POLE, "--runs-dir", tmp_path, *again)
    assert folder(tmp_path) == path  # a new run leaves no folder


CLUSTER = """
import sys, time, ray
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
second = cluster.add_node(num_cpus=2)
cluster.wait_for_nodes()
print(cluster.address, flush=True)
sys.stdin.readline()
cluster.remove_node(second, allow_graceful=False)
cluster.add_node(num_cpus=2)
print("removed", flush=True)
sys.stdin.readline()
cluster.shutdown()
"""


@pytest.mark.long
def test_the_loss_of_a_cluster_node_does_not_change_the_run(tmp_path):
    options = (*POLE, "--stop-after", 7680)
    assert run(ACTORS, *options, "--engine", "inline", "--actors", 4, "--runs-dir", tmp_path / "one").returncode == 0
    (tmp_path / "two").mkdir()
    env = ENVIRONMENT | {"RAY_USAGE_STATS_ENABLED": "0"}
    with subprocess.Popen(
        [sys.executable, "-c", CLUSTER], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as nodes:
        try:
            address = nodes.stdout.readline().strip()
            on_ray = ("--engine", "ray", "--address", address, "--actors", 4, "--actor-cpus", 0.5)
            process = start(ACTORS, *options, *on_ray, "--runs-dir", tmp_path / "two")
            wait_for(lambda: list(tmp_path.glob("two/*/checkpoints/step-000000[2-9]*.pt")), process)
            nodes.stdin.write("\n")
            nodes.stdin.flush()
            stdout, stderr = process.communicate(timeout=180)
            assert process.returncode == 0, stderr
            assert "It is replaced" in stdout + stderr
        finally:
            nodes.stdin.close()
    one, two = (folder(tmp_path / name) for name in ("one", "two"))
    ones, twos = checkpoint_of(one), checkpoint_of(two)
    del ones["random"]["python"], twos["random"]["python"]  # Ray draws from this generator, and this project does not
    assert differences(ones, twos) == []
    assert episodes_of(one) == episodes_of(two)


# In a network namespace of its own, because Ray listens on all interfaces at first.
LOCKED = """
ip link set lo up
RAY_AUTH_MODE=token HOME=$PWD/right ray start --head --port=6399 --num-cpus=2 --include-dashboard=false \\
    --temp-dir=$(mktemp -d) --node-ip-address=127.0.0.1 > head.txt 2>&1
for home in right wrong none; do HOME=$PWD/$home "$@" --runs-dir $home > $home.txt 2>&1; echo $? >> $home.txt; done
RAY_AUTH_MODE=disabled HOME=$PWD/right "$@" --runs-dir right > disabled.txt 2>&1
HOME=$PWD/right ray stop --force
"""


@pytest.mark.long
@pytest.mark.skipif(subprocess.run(["unshare", "-rn", "true"]).returncode != 0, reason="needs network namespaces")
def test_a_clusters_token_is_honoured_and_a_refused_one_is_reported(tmp_path):
    for home, token in (("right", 64 * "a"), ("wrong", 64 * "b"), ("none", None)):
        (tmp_path / home).mkdir()
        if token:
            (tmp_path / home / ".ray").mkdir()
            (tmp_path / home / ".ray" / "auth_token").write_text(token)
    script = [sys.executable, str(PROJECT / ACTORS), *map(str, POLE), "--stop-after", "512"]
    on_ray = ["--engine", "ray", "--address", "127.0.0.1:6399", "--actors", "2"]
    env = {name: value for name, value in ENVIRONMENT.items() if not name.startswith("RAY_")}
    env |= {"PATH": f"{Path(sys.executable).parent}:{env['PATH']}", "RAY_USAGE_STATS_ENABLED": "0"}
    command = ["unshare", "-rn", "bash", "-c", LOCKED, "bash", *script, *on_ray]
    subprocess.run(command, cwd=tmp_path, env=env, check=True, timeout=500, capture_output=True)
    output = {path.stem: path.read_text() for path in tmp_path.glob("*.txt")}
    assert output["right"].endswith("\n0\n"), output["right"]
    refused = "error: the cluster at 127.0.0.1:6399 asks for a token, and "
    assert f"{refused}it refused the one from {tmp_path}/wrong/.ray/auth_token. Copy" in output["wrong"]
    assert f"{refused}there is none in {tmp_path}/none/.ray/auth_token. Copy" in output["none"]
    assert f"{refused}RAY_AUTH_MODE is 'disabled', so none is sent" in output["disabled"]
    assert output["wrong"].endswith("\n2\n")
    assert not list((tmp_path / "wrong").glob("20*"))  # no run folder is left behind


def test_a_cluster_with_another_version_of_ray_is_reported(tmp_path, monkeypatch):
    ray = "raise RuntimeError('Version mismatch: The cluster was started with:\\n    Ray: 2.9.0')"
    (tmp_path / "ray.py").write_text(f"def init(**options):\n    {ray}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        pytest.raises(UsageError, match=r"does not accept this process:\nVersion mismatch: (.*\n)*    Ray: 2\.9\.0"),
    ):
        check_cluster(f"127.0.0.1:{server.getsockname()[1]}")
