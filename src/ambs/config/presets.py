"""Named settings: sizes and amounts that fit a purpose."""

from ambs.config.settings import (
    AgentConfig,
    CalibrationConfig,
    Config,
    ModelConfig,
    SafetyConfig,
    ShieldConfig,
    TrainingConfig,
)


def quickstart() -> Config:
    """`point_world` on two cores, in minutes."""
    return Config(
        env="ambs/PointWorld-v0",
        obs="vector",
        method="copt",
        model=ModelConfig(size="xxs", learning_rate=2e-3, standardise=False, vector_scale=100.0, label_scale=10.0),
        agent=AgentConfig(alpha=1.0, learning_rate=5e-4, imagination=8, imagine_from=64),
        shield=ShieldConfig(safety_level=0.3, approximation_error=0.1, horizon=3, chunk=50, traces=200),
        training=TrainingConfig(
            frames=80_000,
            action_repeat=4,
            prefill=800,
            batch=16,
            length=16,
            train_ratio=96.0,
            updates_per_call=6,
            capacity=100_000,
            log_every=2000,
            checkpoint_every=20_000,
        ),
        safety=SafetyConfig(cost=0.8, discount=0.95),
        calibration=CalibrationConfig(every=240, windows=512, false_flags=0.01),
    )


def guard() -> Config:
    """A shield around a policy that is given, of a world of a few numbers, on two cores, in minutes; the rest is the method's."""
    return Config(
        env="ambs/PointWorld-v0",
        obs="vector",
        method="guard",
        model=ModelConfig(size="xxs", learning_rate=2e-3, vector_scale=100.0, label_scale=10.0),
        agent=AgentConfig(penalty="none", learning_rate=5e-4, imagination=15, imagine_from=64),
        shield=ShieldConfig(horizon=20, chunk=64, traces=256),
        training=TrainingConfig(
            frames=100_000,
            envs=16,
            prefill=4000,
            batch=16,
            length=32,
            train_ratio=32.0,
            updates_per_call=6,
            capacity=100_000,
            log_every=4000,
            checkpoint_every=50_000,
        ),
        safety=SafetyConfig(cost=0.8, discount=0.95),
        calibration=CalibrationConfig(every=240, windows=512),
    )


def default() -> Config:
    """The paper's tasks on one GPU in well under an hour: with what has been seen to learn there (docs/experiments.md)."""
    return Config(
        model=ModelConfig(size="xs", learning_rate=3e-4, label_scale=10.0),
        agent=AgentConfig(learning_rate=1e-4, lag_mu=5e-6, lag_sigma=0.0),
        training=TrainingConfig(
            envs=16, batch=8, length=64, train_ratio=64.0, early_ratio=160.0, early_frames=40_000, mirror=True
        ),
        safety=SafetyConfig(cost=0.3),
        calibration=CalibrationConfig(context=32),
    )


def paper_scale() -> Config:
    """The paper's sizes and amounts."""
    return Config()


PRESETS = {"quickstart": quickstart, "guard": guard, "default": default, "paper-scale": paper_scale}
