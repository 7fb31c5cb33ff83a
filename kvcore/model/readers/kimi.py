"""Kimi Linear and Kimi K3: multi-head latent attention in some layers, Kimi delta attention in the others."""

from __future__ import annotations

from kvcore.errors import ConfigError
from kvcore.model.keys import Keys
from kvcore.model.memories import Memory
from kvcore.model.readers.designs import kimi_delta
from kvcore.model.readers.latent import key_width, latent_memory, mla_layer_parameters
from kvcore.model.readers.shape import Family, Shape, read_heads, read_hidden, read_layers
from kvcore.model.weights import Tally, count_embeddings, read_feed_forward


def read_kimi(keys: Keys, family: Family) -> Shape:
    """The shape of a model with latents in some layers and a delta state in the rest."""
    layers, hidden, heads = read_layers(keys), read_hidden(keys), read_heads(keys)
    latent = latent_memory(keys)
    state, state_parameters = kimi_delta(keys, family, hidden)
    attends = _attending(keys, layers)
    stack: list[tuple[Memory, ...]] = [(latent,) if full else (state,) for full in attends]
    tally = Tally()
    vocabulary = count_embeddings(keys, tally, hidden, family.tied)
    feed_forward = read_feed_forward(keys, layers, hidden, gated=True)
    latent_parameters = mla_layer_parameters(keys, hidden, heads)
    for index, full in enumerate(attends):
        tally.add("attention" if full else "recurrent layers", latent_parameters if full else state_parameters)
        feed_forward.count(tally, index)
        tally.add("norms", 2 * hidden)
    return Shape(
        layers=tuple(stack),
        hidden_size=hidden,
        num_attention_heads=heads,
        head_dim=keys.integer("v_head_dim", high=2**16),
        key_head_dim=key_width(keys),
        vocab_size=vocabulary,
        experts=feed_forward.experts,
        tally=tally,
    )


def _attending(keys: Keys, layers: int) -> list[bool]:
    """Which layers keep a latent; `kda_layers` and `full_attn_layers` count from 1."""
    types = keys.per_layer("layer_types", layers)
    if types is not None:
        return [kind == "full_attention" for kind in types]
    nested = keys.child("linear_attn_config")
    if nested is None:
        raise ConfigError("config.json: linear_attn_config is missing; expected kda_layers and full_attn_layers")
    delta, full = (
        {nested.check(layer, (name,), 1, layers) for layer in nested.items(name) or []}
        for name in ("kda_layers", "full_attn_layers")
    )
    # The lists name layers from 1; together they must name each layer once.
    if delta & full or delta | full != set(range(1, layers + 1)):
        raise ConfigError(
            f"config.json: kda_layers and full_attn_layers do not name each of the layers 1 … {layers} exactly once"
        )
    return [layer in full for layer in range(1, layers + 1)]
