"""tools/look.py: what it prints about a game."""

import re
from pathlib import Path

import cv2
import pytest

from lib.run import video_file
from running import PROJECT, run, start, start_program

LOOK = Path("tools/look.py")


def look(*options):
    process = run(LOOK, *options)
    assert process.returncode == 0, process.stderr
    rows = (line.split(maxsplit=1) for line in process.stdout.splitlines())
    return {row[0]: row[1] for row in rows}


def test_look_prints_spaces_rewards_lengths_and_returns():
    seen = look("fakes:Board-v0", "--episodes", 40)
    assert seen["observations"] == "Box(-2, 2, (9, 8), int8)"
    assert seen["states"] == "board, (1, 9, 8) float32"
    assert seen["actions"].startswith("5: ")
    rewards = dict(part.rstrip("%)").split(" (") for part in seen["rewards"].split(", "))
    assert set(rewards) == {"0", "1"}
    assert 10 < float(rewards["1"]) < 30  # one of five actions earns 1
    assert seen["length"] == "mean 5 steps, 5 to 5"
    assert seen["legal"].startswith("100%")
    mean, error = re.match(r"mean (\S+) ± (\S+), \d to \d$", seen["return"]).groups()
    assert 0.5 < float(mean) < 1.5
    assert 0.05 < float(error) < 0.3
    assert re.fullmatch(r"[\d,]+ steps/s", seen["speed"])


def test_one_episode_has_no_standard_error():
    assert "±" not in look("fakes:Vector-v0", "--episodes", 1)["return"]


def test_only_legal_actions_are_played():
    assert look("fakes:Vector-info-v0", "--episodes", 10)["legal"].startswith("80%")  # an illegal one would raise


def test_the_return_of_an_episode_that_is_cut_counts_unclipped_rewards(answer, monkeypatch):
    monkeypatch.setattr("lib.run.episode_player.MAX_STEPS", 150)
    lines = answer(LOOK, "SpaceInvadersNoFrameskip-v4", "--episodes", 1).splitlines()
    seen = dict(line.split(maxsplit=1) for line in lines)
    assert seen["cut"].startswith("1 of 1 episodes, at 150 steps")
    share = float(seen["rewards"].split("1 (")[1].split("%")[0]) / 100
    assert float(seen["return"].split()[1].rstrip(",")) >= 5 * 150 * share > 0  # the worst alien is worth 5 points


@pytest.mark.parametrize(("name", "code"), [("Simulator", 0), ("Simulator-broken", 1)])
def test_look_ends_although_a_process_or_thread_of_the_environment_would_not(name, code, tmp_path):
    process = start(LOOK, f"fakes:{name}-v0", "--episodes", 2, cwd=tmp_path)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert ("the simulator broke" in errors) == bool(code)


def test_the_first_episode_can_be_recorded(tmp_path):
    path = tmp_path / "random.webm"
    assert look("fakes:Shown-v0", "--episodes", 2, "--record", path)["video"] == str(path)
    video = cv2.VideoCapture(str(path))
    assert video.get(cv2.CAP_PROP_FRAME_COUNT) == 6 + 1  # the first state, and the one after each of six steps


OWN_MODULE = """
import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv
gym.register("Own-v0", CartPoleEnv, max_episode_steps=7)
"""


@pytest.mark.slow
def test_a_module_in_the_current_folder_is_found(tmp_path):
    (tmp_path / "own_game.py").write_text(OWN_MODULE)
    program = f"import runpy; runpy.run_path({str(PROJECT / LOOK)!r}, run_name='__main__')"
    output, errors = start_program(program, tmp_path, "own_game:Own-v0", "--episodes", 5).communicate()
    assert "length        mean 7 steps, 7 to 7" in output, errors


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("NoGame-v0", "cannot make"),
        ("own_gam:Own-v0", "the module 'own_gam'"),
        ("fakes:Continuous-v0", "action space"),
    ],
)
def test_a_game_that_cannot_be_played_is_refused(env_id, message):
    process = run(LOOK, env_id)
    assert process.returncode == 2
    assert message in process.stderr
    assert process.stderr.count("\n") == 1


def test_an_incomplete_video_is_removed_and_the_old_one_kept(ends, tmp_path, monkeypatch):
    class Full:
        """OpenCV ignores a full disk."""

        def write(self, frame):
            pass

        def release(self):
            pass

    path = tmp_path / "random.webm"
    path.write_text("old")
    monkeypatch.setattr(video_file.Video, "_open", lambda *_: Full())
    code, output, errors = ends(LOOK, "fakes:Shown-v0", "--episodes", 1, "--record", path)
    assert code == 1
    assert "the video has 0 of its 7 frames" in errors
    assert "video" not in output
    assert [each.name for each in tmp_path.iterdir()] == ["random.webm"]
    assert path.read_text() == "old"


def test_a_video_is_a_webm_file(refused):
    assert "random.mp4 has to end in .webm" in refused(LOOK, "fakes:Shown-v0", "--record", "random.mp4")
