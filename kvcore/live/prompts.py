"""What goes in: text as token ids, afresh or as the next turn of a conversation."""

from __future__ import annotations

from kvcore.errors import LiveError
from kvcore.live.options import RunOptions
from kvcore.live.session import Loaded
from kvcore.live.shape import LiveShape

# A running text for prompts that are chosen by their length.
TEXT = (
    "A language model reads a text as a row of tokens and answers one token at a time. For each token that it has "
    "read it keeps a key and a value in every layer, because every later token will look back at them. Reading the "
    "prompt is heavy work that can be done for all of its tokens at once; that is why the first word of an answer "
    "takes longest. Every further word needs only one token's work, and one look at everything that was kept. "
    "Whoever throws the kept keys and values away must read the whole text again for each new word, and the longer "
    "the text grows, the longer every word takes. Memory is what this speed costs. It grows with each token of each "
    "conversation, and on a busy machine it is soon larger than the model itself. Engineers share heads, store "
    "latents, forget what lies far back, or keep fewer bits, and each of these choices trades a little of what the "
    "model can recall for room and pace. "
)


def fresh_ids(loaded: Loaded, options: RunOptions) -> list[int]:
    """The ids of a first turn: messages, a number of tokens, or a prompt in the model's own format."""
    tokenizer = loaded.tokenizer
    if options.messages:
        ids = tokenizer.chat(options.messages)
    elif options.prompt_tokens is not None:
        ids = _of_length(loaded, options.prompt_tokens)
    elif options.chat:
        ids = tokenizer.chat([("user", options.prompt)])
    else:
        ids = tokenizer.encode(options.prompt)
    if not ids:
        raise LiveError("the prompt has no tokens; write something")
    return list(ids)


def next_ids(loaded: Loaded, options: RunOptions, ids: list[int], held: int) -> list[int]:
    """The ids that a next turn adds to the first `held` of `ids`, which the cache holds.

    They begin with what was generated last and is not in the cache yet, unless that was a mark of the end, which the
    model's own format writes again.
    """
    tokenizer = loaded.tokenizer
    pending = [one for one in ids[held:] if one not in tokenizer.stop_ids]
    if options.prompt_tokens is not None:
        return pending + _of_length(loaded, options.prompt_tokens)
    text = options.messages[-1][1] if options.messages else options.prompt
    if not options.chat:
        return pending + list(tokenizer.encode(text))
    return pending + list(tokenizer.follow_up(text))


def _of_length(loaded: Loaded, count: int) -> list[int]:
    once = loaded.tokenizer.encode(TEXT)
    return (once * (count // len(once) + 1))[:count]


def default_variants(shape: LiveShape) -> tuple[str, ...]:
    """Every head, the shipped attention, one head, a latent in DeepSeek's proportion to the head, and a window."""
    latent = f"mla:{4 * shape.head_dim}+{max(2, shape.head_dim // 2)}"
    return ("mha", "shipped", "mqa", latent, "sliding:256")
