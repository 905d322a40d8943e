"""The world model: stepping, masking, heads and loss, against manual computation."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ambs.config import ModelConfig
from ambs.data import Experience
from ambs.dynamics import Step
from ambs.errors import UserError
from ambs.nn.distributions import categorical_kl, symexp, symlog
from ambs.shield import ShieldConfig, ShieldProblem, rollout, shield
from ambs.spec import Atoms, parse_formula
from ambs.streams import stream
from ambs.world_model.heads import HEADS, Head
from ambs.world_model.loss import kl_terms, world_model_loss
from ambs.world_model.model import WorldModel, WorldSpec
from ambs.world_model.rssm import Latent
from ambs.world_model.vision import Encoder, ObservationSpec, graded, reconstruction_loss
from tests.tiny import TINY, filter_one, fresh, quick_jit, tiny_sizes

ATOMS = Atoms(("hazard", "collision"))
PSI = parse_formula("!hazard & !collision", ATOMS)


@functools.cache
def make(observation=None, frames=2, **config) -> WorldModel:
    spec = WorldSpec(observation or ObservationSpec(vector=3), 2, ATOMS, PSI, frames)
    with tiny_sizes():
        return quick_jit(lambda key: WorldModel(spec, ModelConfig("xxs", **config), key=key))(fresh())


def sequence(model: WorldModel, batch=2, time=5, seed=1) -> Experience:
    keys = jax.random.split(jax.random.key(seed), 6)
    seen = model.spec.observation
    observation = {}
    if seen.image:
        observation["image"] = jax.random.randint(
            keys[0], (batch, time, seen.image, seen.image, seen.channels), 0, 256
        ).astype(jnp.uint8)
    if seen.vector:
        observation["vector"] = jax.random.normal(keys[1], (batch, time, seen.vector))
    return Experience(
        observation,
        jax.random.normal(keys[2], (batch, time, 2)),
        jax.random.normal(keys[3], (batch, time)),
        jax.random.bernoulli(keys[4], 0.3, (batch, time, model.spec.frames, 2)),
        jnp.ones((batch, time)),
        jnp.zeros((batch, time), bool).at[:, 0].set(True),
    )


def starts(model: WorldModel, batch: int) -> Latent:
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[None], (batch, *leaf.shape)), model.rssm.initial())


def test_filtering_equals_stepping():
    model = make()
    items = jax.tree.map(lambda leaf: leaf[0], sequence(model))
    embeddings = jax.vmap(model.encoder)(items.observation)
    initial = model.rssm.initial()
    whole = quick_jit(filter_one)(model, items, fresh())
    observe = quick_jit(model.rssm.observe)
    latent = initial
    for t in range(5):
        drawn = model.rssm.draw(jax.random.fold_in(fresh(), t))
        step = observe(latent, items.action[t], embeddings[t], items.is_first[t], drawn)
        for one, many in zip(jax.tree.leaves(step), jax.tree.leaves(whole), strict=True):
            np.testing.assert_allclose(one, many[t], rtol=1e-5, atol=1e-6)
        latent = step.latent


def test_graded_entries_by_hand():
    """Four steps from −4 to 4, each two wide: −1 is halfway through the second, 3 halfway through the last."""
    expected = [1, 0.5, 0, 0, 1, 1, 1, 0.5, 0, 0, 0, 0, 1, 1, 1, 1]
    np.testing.assert_allclose(graded(jnp.array([-1.0, 3.0, -9.0, 9.0]), 4), expected)
    assert graded(jnp.ones(3), 0).shape == (0,)


def test_the_first_step_of_an_episode_forgets():
    """Whatever came before, and whatever action stands there, an episode's first latent is the same."""
    model = make()
    embedding = model.encoder({"vector": jnp.array([0.1, 0.2, 0.3])})
    other = Latent(jnp.full(TINY.deter, 0.7), jax.nn.one_hot(jnp.arange(2), 2))
    drawn = jnp.array([0.2, 0.8])
    anew = model.rssm.observe(model.rssm.initial(), jnp.zeros(2), embedding, jnp.array(True), drawn)
    again = model.rssm.observe(other, jnp.ones(2), embedding, jnp.array(True), drawn)
    later = model.rssm.observe(other, jnp.ones(2), embedding, jnp.array(False), drawn)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), anew, again))
    assert not (anew.latent.deter == later.latent.deter).all()


def test_label_probabilities_and_cost_by_hand():
    model = make(positive_weight=4.0)
    latent = model.rssm.initial()
    logits = model.heads.labels(latent.features).reshape(2, 2)
    probs = 1 / (1 + np.exp(-(np.asarray(logits) - np.log(4.0))))
    np.testing.assert_allclose(model.label_probs(latent.features), probs, rtol=1e-5)
    # The frames of a step are nearly one and the same: it is as dangerous as the worse of them, not as both together.
    holds = ((1 - probs[:, 0]) * (1 - probs[:, 1])).min()
    assert model.cost(latent.features) == pytest.approx(10 * (1 - holds), rel=1e-5)


def test_fresh_rewards_are_zero_and_two_hot_costs_too():
    model = make(cost_head="two_hot")
    assert float(model.reward(model.rssm.initial().features)) == 0
    assert float(model.cost(model.rssm.initial().features)) == 0
    assert model.heads.labels is None


def test_two_hot_costs_stay_between_nothing_and_c():
    """A head that is sure of 100 or of −5 says C or 0."""
    model = make(cost_head="two_hot")
    limit, count = model.config.widths.bin_limit, TINY.bins
    for value, expected in ((100.0, 10.0), (-5.0, 0.0)):
        place = round((float(symlog(jnp.asarray(value))) + limit) / (2 * limit) * (count - 1))
        bias = jnp.full(count, -1e3).at[place].set(0.0)
        sure = eqx.tree_at(lambda m: m.heads.cost, model, lambda _features, bias=bias: bias)
        assert float(sure.cost(model.rssm.initial().features)) == expected


def test_the_model_is_told_what_the_world_executes():
    """Actions beyond ±1 lead where ±1 does, imagined and filtered."""
    model, key = make(), fresh()
    start, drawn = model.rssm.initial(), model.rssm.draw(key)
    seen = jnp.ones(model.encoder.outputs)
    for wild, executed in (([3.0, -7.0], [1.0, -1.0]), ([0.5, 1.5], [0.5, 1.0])):
        both = (jnp.array(wild), jnp.array(executed))
        ahead = [model.rssm.imagine(start, action, drawn) for action in both]
        after = [model.rssm.observe(start, action, seen, jnp.array(False), drawn).latent for action in both]
        for one, other in (ahead, after):
            assert eqx.tree_equal(one, other)
    assert not eqx.tree_equal(ahead[0], model.rssm.imagine(start, jnp.array([0.4, 1.0]), drawn))


def test_kl_terms_by_hand():
    """Each side of the balance has gradients on its own side only, and none below the free nats."""
    p, q = jnp.log(jnp.array([[0.9, 0.1]])), jnp.log(jnp.array([[0.1, 0.9]]))
    exact = 0.8 * np.log(9)
    terms = kl_terms(p, q, 1.0)
    assert terms["dyn"] == pytest.approx(exact)
    assert terms["rep"] == pytest.approx(exact)
    by_posterior = jax.grad(lambda post: kl_terms(post, q, 1.0)["dyn"])(p)
    by_prior = jax.grad(lambda prior: kl_terms(p, prior, 1.0)["rep"])(q)
    assert not by_posterior.any()
    assert not by_prior.any()
    assert jax.grad(lambda prior: kl_terms(p, prior, 1.0)["dyn"])(q).any()
    assert jax.grad(lambda post: kl_terms(post, q, 1.0)["rep"])(p).any()
    assert kl_terms(p, p, 1.0)["dyn"] == 1
    assert not jax.grad(lambda prior: kl_terms(p, prior, 5.0)["dyn"])(q).any()


@pytest.mark.parametrize(
    ("observation", "cost_head"),
    [
        (ObservationSpec(vector=3), "labels"),
        (ObservationSpec(16, 3), "two_hot"),
        (ObservationSpec(image=16, channels=6), "labels"),
    ],
)
def test_loss_is_the_mean_of_its_terms_and_trains_everything(observation, cost_head):
    model = make(observation, cost_head=cost_head, free_nats=0.0)
    batch = sequence(model)

    def loss(model):
        losses, latent = world_model_loss(model, batch, starts(model, 2), fresh())
        return losses.total, (losses, latent)

    (total, (losses, latent)), grads = quick_jit(eqx.filter_value_and_grad(loss, has_aux=True))(model)
    scales = {"dyn": 0.5, "rep": 0.1}
    assert total == pytest.approx(
        float(sum(scales.get(name, 1) * term for name, term in losses.terms.items())), rel=1e-5
    )
    assert latent.deter.shape == (2, 5, TINY.deter)
    assert losses.kl == pytest.approx(float(losses.terms["dyn"]), rel=1e-4)
    expected = {"dyn", "rep", "reward", "proceed", "labels" if cost_head == "labels" else "cost"}
    expected |= ({"image"} if observation.image else set()) | ({"vector"} if observation.vector else set())
    assert set(losses.terms) == expected
    silent = [path for path, leaf in jax.tree.leaves_with_path(eqx.filter(grads, eqx.is_array)) if not jnp.any(leaf)]
    # Behind zero-initialised outputs nothing can move yet; everything else must.
    allowed = ("reward", "cost")
    assert all(any(f".{name}" in jax.tree_util.keystr(path) for name in allowed) for path in silent), silent


def test_the_encoder_tells_long_vectors_from_short_ones():
    """LayerNorm after a map without bias gives x and 2x the same embedding; distances would be invisible."""
    size = ModelConfig(size="xxs").widths
    encoder = Encoder(ObservationSpec(vector=5), size, key=fresh())
    vector = symexp(jnp.linspace(0.5, 1.0, 5))
    near, far = (encoder({"vector": symexp(factor * symlog(vector))}) for factor in (1.0, 2.0))
    assert float(jnp.abs(near - far).max()) > 0.1


def test_reconstruction_by_hand():
    seen = {"image": jnp.full((16, 16, 3), 255, jnp.uint8), "vector": jnp.array([np.e - 1.0])}
    decoded = {"image": jnp.full((16, 16, 3), 0.5), "vector": jnp.array([3.0])}
    losses = reconstruction_loss(decoded, seen, ObservationSpec(16, 1))
    assert losses["image"] == pytest.approx(16 * 16 * 3 * 0.25)
    assert losses["vector"] == pytest.approx(4.0, rel=1e-5)
    # symlog is 1; an entry of mean −1 and deviation .5 stands at (1 + 1)/.5 = 4.
    scaled = ObservationSpec(16, 1, mean=(-1.0,), deviation=(0.5,))
    assert reconstruction_loss(decoded, seen, scaled)["vector"] == pytest.approx(1.0, rel=1e-5)
    np.testing.assert_allclose(scaled.natural(jnp.array([4.0])), seen["vector"], rtol=1e-5)


def test_the_shield_runs_on_the_model_unchanged():
    """Latents, label probabilities and continue flags plug into the shield; imagination is manual stepping."""
    model = make()
    moves = model.moves()
    latent = model.rssm.initial()
    action = jnp.array([0.3, -0.3])
    arrival = moves.move(latent, action, moves.draw(fresh()))
    manual = model.rssm.imagine(latent, action, model.rssm.draw(fresh()))
    np.testing.assert_allclose(arrival.deter, manual.deter)
    np.testing.assert_allclose(moves.read(moves.show(arrival))[0], model.label_probs(manual.features))
    config = ShieldConfig(horizon=5, traces=64)
    problem = ShieldProblem(rollout(moves, 5), lambda _k, _s: action, lambda _k, _s: -action, PSI, ATOMS, config)
    states = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), latent)
    decide = jax.jit(lambda key: shield(key, states, jnp.stack([action, action]), problem, jnp.zeros((2, 2), bool)))
    decision = decide(stream(0, "shield"))
    assert decision.traces_used.tolist() == [64, 64]
    assert jnp.isfinite(decision.p_safe).all()


def test_impossible_observations_are_refused():
    with pytest.raises(UserError, match="multiple of 16"):
        make(ObservationSpec(image=30))
    with pytest.raises(UserError, match="an image, a vector, or both"):
        make(ObservationSpec())


def test_posterior_kl_is_what_is_reported():
    model = make()
    batch = sequence(model)
    losses, _ = quick_jit(world_model_loss)(model, batch, starts(model, 2), fresh())

    @quick_jit
    def exact(model):
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(fresh(), jnp.arange(2))
        embeddings = jax.vmap(jax.vmap(model.encoder))(batch.observation)
        observed = model.rssm.filter(starts(model, 2), batch.action, embeddings, batch.is_first, keys)
        return jax.vmap(jax.vmap(categorical_kl))(observed.posterior, observed.prior).mean()

    assert losses.kl == pytest.approx(float(exact(model)), rel=1e-5)


def test_rollouts_taken_apart_are_the_same():
    """Chance drawn beforehand and labels read afterwards give the very traces that stepping gives."""
    model = make()
    moves = model.moves()

    def whole(key, latent, action):
        arrival = moves.move(latent, action, moves.draw(key))
        return Step(arrival, *moves.read(moves.show(arrival)))

    policy = lambda key, latent: jnp.tanh(latent.deter[:2] + jax.random.normal(key, (2,)))  # noqa: E731
    apart, stepped = (rollout(d, 4)(fresh(), model.rssm.initial(), jnp.ones(2), policy) for d in (moves, whole))
    for a, b in zip(jax.tree.leaves(apart), jax.tree.leaves(stepped), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_new_head_reseeds_nothing_else(monkeypatch):
    """Every network draws from a stream of its own name."""

    before = make()
    monkeypatch.setitem(HEADS, "speed", Head(lambda _spec: 2, lambda given, _item: given.sum(), lambda _config: 1.0))
    after = make.__wrapped__()
    assert after.heads.more["speed"].out.weight.shape[-1] == 2
    same = eqx.tree_at(lambda model: model.heads.more, after, before.heads.more)
    assert eqx.tree_equal(same, before)
