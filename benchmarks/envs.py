"""Speed of the Safety Gym tasks and of the small worlds: prints one JSON line.

Environment steps (frames) per second and core, with and without pictures; time of a reset; pictures per second of the
ray-caster, and of `mujoco.Renderer` drawing the same scenes, where OpenGL works; frames per second of eight small worlds
with actions repeated twice. On Linux the process keeps to one processor, so that figures are per core; a GPU, if JAX has
one, draws the pictures.

    python benchmarks/envs.py [--seconds 2] [--envs 16] [--batch 64] [--all-cores]
"""

import argparse
import json
import os
import subprocess
import sys
import time

TARGETS = {
    "PointGoal1": {"vision_steps_per_s": 1500, "vector_steps_per_s": 5000},
    "PointGoal2": {"vision_steps_per_s": 400, "vector_steps_per_s": 1500},
    "CarGoal1": {"vision_steps_per_s": 1000, "vector_steps_per_s": 2500},
}
SMALL = ("PointWorld", "Grid")
SHARES = []
"""Of each measurement, the share of time in which the processor was ours; well below 1, others were using it too."""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="time spent on each figure")
    parser.add_argument("--envs", type=int, default=16, help="environments side by side")
    parser.add_argument("--batch", type=int, help="pictures per call of the camera; 64, or 1024 on a GPU")
    parser.add_argument("--tasks", nargs="+", default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument("--all-cores", action="store_true", help="do not keep to one processor")
    options = parser.parse_args()
    if not options.all_cores and hasattr(os, "sched_setaffinity"):
        # Before JAX starts its threads, so that they keep to it too.
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with_opengl = find_opengl()
    import jax
    import mujoco

    device = jax.devices()[0]
    options.batch = options.batch or (64 if device.platform == "cpu" else 1024)
    report = {
        "device": device.device_kind,
        "mujoco": mujoco.__version__,
        "one_core": not options.all_cores,
        "envs": options.envs,
        "batch": options.batch,
    }
    figures = {task: measure(task, options, with_opengl) for task in options.tasks}
    figures |= {name: {"frames_per_s": round(small(name, options.seconds))} for name in SMALL}
    print(json.dumps({**report, "processor_share": round(min(SHARES), 2), **figures}))


def find_opengl():
    """Let MuJoCo draw by the first OpenGL that works here; tried in other processes, for a failure can be a crash."""
    code = "import mujoco; mujoco.Renderer(mujoco.MjModel.from_xml_string('<mujoco/>'), 8, 8).render()"
    for kind in dict.fromkeys([os.environ.get("MUJOCO_GL", "egl"), "egl", "osmesa"]):
        environment = {**os.environ, "MUJOCO_GL": kind}
        if subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True).returncode == 0:
            os.environ["MUJOCO_GL"] = kind
            return True
    return False


def measure(task, options, with_opengl):
    figures = {
        "vector_steps_per_s": stepping(task, "vector", options),
        "vision_steps_per_s": stepping(task, "vision", options),
        "reset_ms": resetting(task, options),
        "camera_frames_per_s": drawing(task, "rays", options.batch, options.seconds),
    }
    if with_opengl:
        figures["mujoco_frames_per_s"] = drawing(task, "mujoco", 4, options.seconds)
        figures["camera_times_mujoco"] = figures["camera_frames_per_s"] / figures["mujoco_frames_per_s"]
    else:
        figures["mujoco_frames_per_s"] = None
    met = [figures[name] >= target for name, target in TARGETS[task].items()]
    figures["targets_met"] = all(met) and figures["reset_ms"] <= 5
    return {name: round(value, 2) if isinstance(value, float) else value for name, value in figures.items()}


def rate(call, seconds, per_call):
    """How often per second something happens that `call` does `per_call` times: the best of three spells."""
    call()
    spells = []
    for _ in range(3):
        start, busy, calls = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() - start < seconds / 3:
            call()
            calls += 1
        took = time.perf_counter() - start
        spells.append((calls * per_call / took, (time.process_time() - busy) / took))
    best, share = max(spells)
    SHARES.append(share)
    return best


def stepping(task, observation, options):
    import numpy as np

    from ambs.envs import make_vector

    envs = make_vector(task, options.envs, observation=observation, threads=None if options.all_cores else 1)
    envs.reset(seed=0)
    rng = np.random.default_rng(0)
    speed = rate(lambda: envs.step(rng.uniform(-1, 1, (options.envs, 2))), options.seconds, options.envs)
    envs.close()
    return speed


def small(name, seconds):
    from ambs.envs import make_vector

    envs = make_vector(name, 8, action_repeat=2)
    envs.reset(seed=0)
    actions = envs.action_space.sample()
    return rate(lambda: envs.step(actions), seconds, 16)


def resetting(task, options):
    from ambs.envs import make

    env = make(task, observation="vector")
    return 1000 / rate(lambda: env.reset(), options.seconds / 2, 1)


def drawing(task, renderer, batch, seconds):
    import jax

    from ambs.envs import make_vector

    envs = make_vector(task, batch, observation="vector", renderer=renderer, threads=1)
    envs.reset(seed=0)
    scene = envs.observer.scene(envs.worlds)
    speed = rate(lambda: jax.block_until_ready(envs.observer.camera.render(*scene)), seconds, batch)
    envs.close()
    return speed


if __name__ == "__main__":
    main()
