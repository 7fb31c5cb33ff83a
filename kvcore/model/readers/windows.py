"""Which layers look at everything and which at a window: by the list that says so, else by the family's rule.

`layer_types` wins wherever it is stated. The rules for configurations without it follow transformers 5.24
(configuration_*.py of each family) and, for Llama 4, vLLM 0.33 (llama4.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from kvcore.errors import CONFIG, ConfigError, UnknownLayoutError
from kvcore.model.keys import Keys
from kvcore.model.readers.shape import Family

Law: TypeAlias = str  # "full", "sliding", "chunked", or a family's own word such as "linear_attention"
WindowRule: TypeAlias = Callable[[Keys, Family, int], tuple[Law, ...]]

_TYPE_WORDS = {
    "full_attention": "full",
    "full": "full",
    "global": "full",
    "global_attention": "full",
    "attention": "full",
    "sliding_attention": "sliding",
    "sliding": "sliding",
    "local": "sliding",
    "chunked_attention": "chunked",
}
# Other ways of saying what layer_types says.
_PATTERN_NAMES = ("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers")
_ROPE_NAMES = ("no_rope_layers", "no_rope_layer_interval", "nope_layer_interval")
WINDOW_NAMES = ("sliding_window", "sliding_window_size")


def layer_laws(keys: Keys, family: Family, layers: int, words: tuple[str, ...] = ()) -> tuple[Law, ...]:
    """The law of each layer. `words` are further layer types that this family's reader understands.

    Raises UnknownLayoutError for a type that is not understood.
    """
    listed = keys.per_layer("layer_types", layers)
    if listed is None:
        return RULES[family.window](keys, family, layers)
    keys.know(*_PATTERN_NAMES, "use_sliding_window", "max_window_layers", "window_pattern", *_ROPE_NAMES)
    if "sliding_attention" not in listed:
        keys.know(*WINDOW_NAMES)
    laws = []
    for entry in listed:
        if not isinstance(entry, str) or not (entry in _TYPE_WORDS or entry in words):
            raise UnknownLayoutError(
                f"layer_types has {str(entry)[:40]!r}, which is not understood", file=CONFIG, keys=("layer_types",)
            )
        laws.append(entry if entry in words else _TYPE_WORDS[entry])
    return tuple(laws)


def window_size(keys: Keys, *names: str) -> int:
    """The window of sliding layers in tokens; ConfigError when layers slide and no window is stated."""
    value = keys.optional(*(names or WINDOW_NAMES), high=2**40)
    if value is None:
        raise ConfigError("layers slide, but sliding_window is not stated", file=CONFIG)
    return value


def _none(keys: Keys, family: Family, layers: int) -> tuple[Law, ...]:
    return ("full",) * layers


def _listed_only(keys: Keys, family: Family, layers: int) -> tuple[Law, ...]:
    """Families whose published files always state `layer_types`: without it there is no rule to follow."""
    raise UnknownLayoutError(
        "layer_types is missing, and this model_type has no rule in its place", file=CONFIG, keys=("layer_types",)
    )


def _softmax_only(keys: Keys, family: Family, layers: int) -> tuple[Law, ...]:
    """MiniMax-M2: `attn_type_list` is 1 for softmax attention; the family has nothing else."""
    listed = keys.per_layer("attn_type_list", layers)
    if listed is not None and any(entry != 1 for entry in listed):
        raise UnknownLayoutError(
            "attn_type_list has an entry other than 1, which is not understood for this model_type",
            file=CONFIG,
            keys=("attn_type_list",),
        )
    return ("full",) * layers


def _all(keys: Keys, family: Family, layers: int) -> tuple[Law, ...]:
    """Every layer slides where a window is stated."""
    return ("sliding" if keys.get(*WINDOW_NAMES) else "full",) * layers


# Which layers a Qwen window is for, where a flag switches it on: `max_window_layers` means three things.
_QWEN_SLIDES: dict[str, Callable[[int, int], bool]] = {
    "from": lambda layer, bound: layer >= bound,
    "even_below": lambda layer, bound: layer % 2 == 0 and layer < bound,
    "all": lambda layer, bound: True,
}


def _qwen(keys: Keys, family: Family, layers: int) -> tuple[Law, ...]:
    """`use_sliding_window` switches the window on for layers i ≥ `max_window_layers`."""
    keys.know("sliding_window", "max_window_layers")
    if not keys.flag("use_sliding_window", bool(family.options.get("slides_unless_told", False))):
        return ("full",) * layers
    if not keys.get("sliding_window"):
        return ("full",) * layers
    bound = keys.integer("max_window_layers", default=28, low=0)
    return tuple(
        "sliding" if _QWEN_SLIDES[str(family.options.get("slides", "from"))](layer, bound) else "full"
        for layer in range(layers)
    )


def _every_nth_full(keys: Keys, family: Family, layers: int) -> tuple[Law, ...]:
    """Layers N, 2N, … are full and the others slide; N is stated as a number or a word (LLLG), or the family's."""
    if not keys.get(*WINDOW_NAMES):
        keys.know("sliding_window_pattern")
        return ("full",) * layers
    pattern = keys.get(*_PATTERN_NAMES)
    if isinstance(pattern, str) and pattern and set(pattern) <= {"L", "G"}:
        return tuple("full" if pattern[layer % len(pattern)] == "G" else "sliding" for layer in range(layers))
    period = family.pattern if pattern is None else keys.check(pattern, ("sliding_window_pattern",), 0, 4096)
    if period == 0:
        return ("full",) * layers
    laws = ["full" if (layer + 1) % period == 0 else "sliding" for layer in range(layers)]
    if family.options.get("last_is_full"):
        laws[-1] = "full"
    return tuple(laws)


def _first_of_n_full(keys: Keys, family: Family, layers: int) -> tuple[Law, ...]:
    """Layers 0, N, 2N, … are full and the others slide."""
    if not keys.get(*WINDOW_NAMES):
        return ("full",) * layers
    period = keys.integer("window_pattern", "global_attn_every_n_layers", default=family.pattern)
    return tuple("full" if layer % period == 0 else "sliding" for layer in range(layers))


def _llama4(keys: Keys, family: Family, layers: int) -> tuple[Law, ...]:
    """Layers that use rotary positions attend within a chunk; every fourth has none and is full."""
    keys.know(*_ROPE_NAMES)
    if not keys.get("attention_chunk_size"):
        return ("full",) * layers
    listed = keys.per_layer("no_rope_layers", layers) if keys.get("no_rope_layers") else None
    interval = keys.integer("no_rope_layer_interval", default=4)
    rotary = listed or [int((layer + 1) % interval != 0) for layer in range(layers)]
    return tuple("chunked" if uses_rope else "full" for uses_rope in rotary)


def _listed_pattern(keys: Keys, family: Family, layers: int) -> tuple[Law, ...]:
    """MiMo-V2: `hybrid_layer_pattern` has 1 for a sliding layer."""
    listed = keys.per_layer("hybrid_layer_pattern", layers)
    if listed is None:
        raise ConfigError("hybrid_layer_pattern is missing; expected a 0 or 1 for each layer", file=CONFIG)
    if any(entry not in (0, 1) for entry in listed):
        raise ConfigError("hybrid_layer_pattern has an entry that is neither 0 (full) nor 1 (sliding)", file=CONFIG)
    return tuple("sliding" if entry else "full" for entry in listed)


def _gpt_neo(keys: Keys, family: Family, layers: int) -> tuple[Law, ...]:
    """GPT-Neo: `attention_types` is a list of [[kinds], repeats]."""
    laws: list[Law] = []
    for entry in keys.items("attention_types") or []:
        if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], list)):
            raise ConfigError("attention_types is not a list of [[kinds], repeats]", file=CONFIG)
        repeats = keys.check(entry[1], ("attention_types",), 1, 2048)
        laws += [_TYPE_WORDS.get(str(kind), "") for kind in entry[0]] * repeats
        if len(laws) > 4096:
            break
    laws = laws or ["full" if layer % 2 == 0 else "sliding" for layer in range(layers)]
    if "" in laws or len(laws) != layers:
        raise ConfigError(f"attention_types describes {len(laws)} layers; the model has {layers}", file=CONFIG)
    keys.know("attention_layers")
    return tuple(laws)


RULES: dict[str, WindowRule] = {
    "none": _none,
    "softmax_only": _softmax_only,
    "listed_only": _listed_only,
    "all": _all,
    "qwen": _qwen,
    "every_nth_full": _every_nth_full,
    "first_of_n_full": _first_of_n_full,
    "llama4": _llama4,
    "listed_pattern": _listed_pattern,
    "gpt_neo": _gpt_neo,
}
