"""The experiments as data; bench.py says what an experiment is, and measures.py has the functions that measure."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from measures import (
    EMULATOR,
    Measure,
    lag,
    latency,
    overestimation,
    pin,
    play_peer,
    solve,
    speed,
    speed_beside,
    train,
    train_and_evaluate,
    train_in_bins,
)


class Experiment(NamedTuple):
    """Experiment.

    Attributes:
        about: one line that says what it measures.
        variants: settings of each variant by its name.
        measure: function that measures a variant with a seed.
        seeds: default seeds.
        jobs: default number of measurements at a time. With several, each has one torch thread.
        in_rounds: whether only complete rounds are used.
        other: settings of a variant that is a script with options and not among `variants`; "" if there is no other.
    """

    about: str
    variants: Mapping[str, str]
    measure: Measure
    seeds: Sequence[int] = (1,)
    jobs: int = 1
    in_rounds: bool = False
    other: str = ""

    def settings_of(self, variant: str) -> str:
        """Return the settings of a variant.

        Raises:
            SystemExit: if there is no such variant.
        """
        if variant not in self.variants and not self.other:
            raise SystemExit(f"no variant is named {variant!r}; choose among {', '.join(map(repr, self.variants))}")
        return self.variants.get(variant) or self.other.format(variant)


def assigned(**fields: object) -> str:
    """Return hyperparameters as options of a script."""
    return " ".join(f"--set {name}={value}" for name, value in fields.items())


BASELINE = "01_baseline"
TUNED = "--config configs/pong-cpu.json"
WARM_UP = 2000  # agent steps before the timed part of a short run
TIMED_DQN = f"--set replay_initial={WARM_UP} --stop-after {WARM_UP + 1100}"


def timed(steps: Mapping[str, int]) -> dict[str, str]:
    """Return the settings of short runs of these scripts with so many agent steps of learning."""
    return {
        name: f"{name} --stop-after {number}"
        if name.startswith("distributed")
        else f"{name} --set replay_initial={WARM_UP} --stop-after {WARM_UP + number}"
        for name, number in steps.items()
    }


# Timed agent steps of each rung: 10 to 110 seconds of learning. PPO's first update precedes them.
LADDER = {
    "00_slow_grads": 1_100,
    BASELINE: 1_100,
    "02_n_envs --envs 3": 1_100,
    "03_parallel": 1_100,
    "04_wrappers --envs 3": 1_100,
    "04_wrappers --envs 3 --parallel": 1_100,
    "05_native_envs --envs 16": 1_600,
    "06_fast_learner --envs 16": 3_200,
    "07_pong_in_minutes": 8_000,
    "distributed/01_ppo": 40_960,
    "distributed/02_ppo_fast": 40_960,
    "distributed/03_ppo_actors": 40_960,
}
CHAPTER09 = list(LADDER)[:6]
MINUTES = (*CHAPTER09, "05_native_envs --envs 4", "06_fast_learner --envs 4", "07_pong_in_minutes")
# Rungs that play and learn bit for bit as others do (tests/test_scripts.py), so only their speeds differ.
EQUAL = {"00_slow_grads": BASELINE, "04_wrappers --envs 3": "02_n_envs --envs 3"}

PARTS = ("double", "dueling", "noisy", "prioritised", "n_step", "distributional")
CHAPTER08 = {
    "basic": (),
    "n_steps": ("n_step",),
    "double": ("double",),
    "noisy_net": ("noisy",),
    "prio_replay": ("prioritised",),
    "dueling": ("dueling",),
    "distrib": ("distributional",),
    "double, n_steps": ("double", "n_step"),
    "rainbow": PARTS,
}
ON_PONG = "--set normalise=true --envs 8 --v-max 2 --stop-after 320000 " + assigned(
    stop_reward="none",
    milestone=0,
    replay_initial=5000,
    batch_size=4,
    epsilon_frames=25_000,
    learning_rate=5e-4,
    checkpoint_replay="false",
)


def left_out(parts: Iterable[str]) -> str:
    """Return the options of 08_dqn_rainbow.py that leave out all parts but these."""
    return " ".join(f"--without {part}" for part in PARTS if part not in parts)


# The learning rate is the middle of the range, 2e-4 to 4e-3, in which the baseline learns equally fast.
ON_CATCH = "--env-id fakes:Catch-v0 --stop-after 2500 " + assigned(
    replay_initial=300,
    replay_size=5000,
    epsilon_frames=1500,
    epsilon_final=0.05,
    target_net_sync=60,
    learning_rate=1e-3,
    checkpoint_replay="false",
)

# Most agent steps of a run, and hyperparameters. Those that `01_ppo` learns slowly come last.
GAMES = {
    "CartPole-v1": "--stop-after 300000",
    "Acrobot-v1": "--stop-after 500000",
    "Pendulum-v1": "--stop-after 1000000 --set stop_reward=-200",  # it registers no goal
    "LunarLander-v3": "--stop-after 1500000",
    "minigrid:MiniGrid-Empty-8x8-v0": "--stop-after 300000 --set milestone=0.9",  # it registers no goal
    "examples.snake:Snake-v0": "--stop-after 500000",
    "examples.blocks:Blocks-v0": "--stop-after 1000000",
    "examples.connect_four:ConnectFour-v0": "--stop-after 1000000",
}
# Agent steps, and returns of PPO published by rl-zoo and by CleanRL after as many steps; 5 million for BipedalWalker.
CONTROL = {
    "02_ppo_fast CartPole-v1": (100_000, "500.0", ""),
    "02_ppo_fast Acrobot-v1": (1_000_000, "-73.5", ""),
    "02_ppo_fast Pendulum-v1": (100_000, "-172.2", ""),
    "02_ppo_fast LunarLander-v3": (1_000_000, "242.1", ""),
    "02_ppo_fast LunarLanderContinuous-v3": (1_000_000, "270.9", ""),
    "02_ppo_fast BipedalWalker-v3": (1_000_000, "213.3", ""),
    "02_ppo_fast HalfCheetah-v5": (1_000_000, "5,819", "1,443"),
    "02_ppo_fast Hopper-v5": (1_000_000, "2,410", "2,383"),
    "02_ppo_fast Walker2d-v5": (1_000_000, "3,479", "2,288"),
    "02_ppo_fast Ant-v5": (1_000_000, "1,327", ""),
    "02_ppo_fast InvertedDoublePendulum-v5": (1_000_000, "", ""),
    "02_ppo_fast BreakoutNoFrameskip-v4": (2_500_000, "", ""),
    "04_ppo_memory minigrid:MiniGrid-DoorKey-5x5-v0": (300_000, "", ""),
    "04_ppo_memory minigrid:MiniGrid-MemoryS7-v0": (1_000_000, "", ""),
}
PPO = "distributed/02_ppo_fast --game pong"  # with Pong's settings
STEP_PENALTY = 0.1  # of SnakeStepPenalty-v0
SNAKE_AND_BLOCKS = {
    "snake": f"{PPO} --env-id examples.snake:Snake-v0 --stop-after 300000 --set stop_reward=none",
    "penalty": f"{PPO} --env-id examples.snake:SnakeStepPenalty-v0 --stop-after 300000",
    "blocks": f"{PPO} --env-id examples.blocks:Blocks-v0 --stop-after 900000 "
    + assigned(gamma=0.99, entropy=0.02, kl_target="none", stop_reward=20),
    "snake-dqn": "07_pong_in_minutes --env-id examples.snake:Snake-v0 --stop-after 300000 --set stop_reward=none",
    "blocks-dqn": "07_pong_in_minutes --env-id examples.blocks:Blocks-v0 --stop-after 300000 --set stop_reward=none",
}

ENGINES = ("inline", "process", "ray")
ACTORS = (1, 2, 4, 8)
ON_SLOW_CARTPOLE = "--game pong --env-id slow:SlowCartPole-v0 " + assigned(rollout=64, minibatch=64, gamma=0.99)
LAGS = (0, 4, 12)  # updates by which the weights of a segment are behind

UNTIL = "until 18 or 400 s"
BESIDE_SB3 = ("CartPole-v1", "HalfCheetah-v5")

EXPERIMENTS = {
    "solve": Experiment(
        "time to solve Pong, seed by seed, one at a time; the emulator alone is timed before and after",
        {
            "07_pong_in_minutes": "07_pong_in_minutes --time-limit 2000",
            "distributed/01_ppo": "distributed/01_ppo --time-limit 600",
            "distributed/03_ppo_actors": "distributed/03_ppo_actors --time-limit 1800",
        },
        solve,
        other="{} --time-limit 1800",
    ),
    "trials": Experiment(
        "agent steps to solve Pong, with any script and any --set",
        {
            "distributed/02_ppo_fast": "distributed/02_ppo_fast --stop-after 1200000",
            f"{PPO} --env-id ALE/Pong-v5": f"{PPO} --env-id ALE/Pong-v5 --stop-after 3000000",  # sticky actions
        },
        train,
        seeds=range(101, 111),
        jobs=2,
        other="{} --stop-after 1200000",
    ),
    "ladder": Experiment(
        "steps a second of chapter 9's and PPO's scripts, in turn",
        {EMULATOR: EMULATOR} | timed(LADDER),
        speed,
        seeds=range(1, 6),
        in_rounds=True,
        other="{} --stop-after 40960",
    ),
    "chapter09": Experiment(
        "steps a second of chapter 9's first scripts with the book's hyperparameters, in turn",
        timed(dict.fromkeys(CHAPTER09, 1100)),
        speed,
        seeds=range(1, 6),
        in_rounds=True,
        other="{} " + TIMED_DQN,
    ),
    "sweep": Experiment(
        "steps a second with one to six environments, in turn",
        timed({f"02_n_envs --envs {n}": 1100 for n in range(1, 7)}),
        speed,
        seeds=range(1, 6),
        in_rounds=True,
    ),
    "minutes": Experiment(
        "agent steps until chapter 9's scripts solve Pong with tuned hyperparameters; hours each",
        {rung: f"{rung} {'' if rung.startswith('07') else TUNED}".strip() for rung in MINUTES if rung not in EQUAL},
        train,
        jobs=2,
    ),
    "minutes-speed": Experiment(
        "steps a second of these scripts with tuned hyperparameters, in turn",
        {rung: f"{rung} {'' if rung.startswith('07') else f'{TUNED} '}{TIMED_DQN}" for rung in MINUTES},
        speed,
        seeds=range(1, 6),
        in_rounds=True,
    ),
    "chapter08": Experiment(
        "what chapter 8's extensions learn on Pong from 320,000 steps; an hour a run",
        {
            name: " ".join(f"chapter08/08_dqn_rainbow {left_out(parts)} {ON_PONG}".split())
            for name, parts in CHAPTER08.items()
        },
        partial(train_in_bins, width=10_000),
        seeds=range(1, 4),
        jobs=2,
    ),
    "overestimation": Experiment(
        "values of DQN and of double DQN beside what their policies earn",
        {
            name: f"chapter08/03_dqn_double {option} {TUNED} --stop-after 200000 --set stop_reward=none"
            for name, option in (("DQN", "--no-double"), ("double DQN", "--double"))
        },
        partial(overestimation, width=10_000),
        jobs=2,
    ),
    "catch": Experiment(
        "what chapter 9's scripts learn from equal numbers of steps of Catch, a small game",
        {
            rung: f"{rung} {ON_CATCH}"
            for rung in (BASELINE, "02_n_envs --envs 3", "03_parallel", "04_wrappers --envs 3 --parallel")
        },
        partial(train_in_bins, width=250),
        seeds=range(1, 6),
        jobs=2,
    ),
    "engines": Experiment(
        "steps a second of Pong by engine and number of actors, in turn",
        {
            f"{engine} {actors}": f"distributed/03_ppo_actors --engine {engine} --actors {actors} --stop-after 10240"
            for engine in ENGINES
            for actors in ACTORS
        },
        speed,
        seeds=range(1, 4),
        in_rounds=True,
    ),
    "latency": Experiment(
        "steps a second of actors whose environment takes 5 ms a step, in turn",
        {f"{engine} {actors}": f"{engine} {actors}" for engine in ENGINES for actors in ACTORS},
        latency,
        seeds=range(1, 4),
        in_rounds=True,
    ),
    "lag": Experiment(
        "returns on CartPole after learning from segments of older weights",
        {f"{behind} {how}": f"{behind} {how}" for behind in LAGS for how in ("ratio", "V-trace")},
        lag,
        seeds=range(1, 6),
    ),
    "actors": Experiment(
        "return against seconds with one actor and with eight, 5 ms a step",
        {
            f"{n}": f"distributed/03_ppo_actors --actors {n} {ON_SLOW_CARTPOLE} --set envs={2 * n} --time-limit 90"
            for n in (1, 8)
        },
        partial(train_in_bins, width=5, by="seconds"),
        seeds=range(1, 4),
    ),
    "games": Experiment(
        "PPO on other games with default settings; LunarLander and MiniGrid need pip install -e '.[games]'",
        {
            f"{script} {game}": f"distributed/{script} --env-id {game} {options}"
            for game, options in GAMES.items()
            for script in ("01_ppo", "02_ppo_fast")
        },
        train_and_evaluate,
        seeds=range(201, 204),
        jobs=2,
    ),
    "control": Experiment(
        "PPO on tasks with published returns, with default settings; needs pip install -e '.[games,mujoco]'",
        {
            name: f"distributed/{name.replace(' ', ' --env-id ')} --set stop_reward=none --stop-after {steps}"
            for name, (steps, *_) in CONTROL.items()
        },
        train_and_evaluate,
        seeds=range(301, 304),
        jobs=2,
    ),
    "snake-blocks": Experiment(
        "learning curves of PPO and DQN on Snake, with and without a penalty, and on Blocks",
        SNAKE_AND_BLOCKS,
        partial(train_in_bins, width=10_000, columns=("return", "length")),
        seeds=range(1, 4),
        jobs=2,
    ),
    "peers": Experiment(
        "other projects on Pong, with the settings that they publish; CLEANRL=PATH names a checkout of CleanRL",
        {
            "sb3-ppo": f"{pin('sb3')}: run_sb3.py ppo; {UNTIL}",
            "sb3-dqn": f"{pin('sb3')}: run_sb3.py dqn; {UNTIL}",
            "rl_games-ppo": f"{pin('rl_games')}: run_rl_games.py; {UNTIL}",
            "cleanrl-ppo": f"cleanrl: cleanrl/ppo_atari_envpool.py --env-id Pong-v5; {UNTIL}",
        },
        play_peer,
    ),
    "games-speed": Experiment(
        "steps a second of PPO on other games beside Stable-Baselines3, in turn",
        {
            f"{script} {task}": f"distributed/{script} --env-id {task} --set stop_reward=none --stop-after 100000"
            for script in ("01_ppo", "02_ppo_fast")
            for task in BESIDE_SB3
        }
        | {
            f"sb3-ppo {task}": f"{pin('sb3')}: run_sb3.py ppo --env-id {task} --envs 8; until inf or 60 s"
            for task in BESIDE_SB3
        },
        speed_beside,
        seeds=range(1, 4),
        in_rounds=True,
    ),
}
