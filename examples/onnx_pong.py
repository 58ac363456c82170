"""Play Pong with an exported policy, without this project: pip install onnxruntime "gymnasium[atari,other]" ale-py

python onnx_pong.py RUN/export/policy.onnx --episodes 3
python onnx_pong.py RUN/export/policy.onnx --window
"""

import argparse

try:
    import ale_py
    import gymnasium as gym
    import numpy as np
    import onnxruntime
except ImportError as error:
    raise SystemExit(f"error: {error}; see the first lines of this file") from None

parser = argparse.ArgumentParser()
parser.add_argument("policy")
parser.add_argument("--episodes", type=int, default=1)
parser.add_argument("--window", action="store_true")
args = parser.parse_args()

gym.register_envs(ale_py)
policy = onnxruntime.InferenceSession(args.policy)
env = gym.make("PongNoFrameskip-v4", render_mode="human" if args.window else None)
env = gym.wrappers.AtariPreprocessing(env)  # every fourth frame, grey, 84 x 84
env = gym.wrappers.FrameStackObservation(env, 4)

for episode in range(args.episodes):
    state, _ = env.reset(seed=episode)
    total, ended = 0.0, False
    while not ended:
        action, _ = policy.run(None, {"state": np.asarray(state)[None]})
        state, reward, terminated, truncated, _ = env.step(int(action[0]))
        total, ended = total + float(reward), terminated or truncated
    print(f"Episode {episode + 1}: return {total:g}")
