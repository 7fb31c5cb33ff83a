"""How models write a conversation: known formats as data, recognised by marks in a chat template that is never run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

# Sentences that a template puts first where nobody gave a system message; longer ones first.
_SYSTEMS = (
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
    "You are a helpful assistant.",
)
# Llama 3.1 and 3.2 always write these lines; the date is the one their templates fall back on, so that runs compare.
_LLAMA_MARK = "Cutting Knowledge Date: December 2023"
_LLAMA_DATES = f"{_LLAMA_MARK}\nToday Date: 26 Jul 2024\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """One way of writing messages: for each role the text before and after, in which marks are single tokens.

    `mark`: what a template holds that writes so. `stop`: the token that ends a reply. `begins`: whether what the
    tokenizer puts before a text (<s>, <|begin_of_text|>) comes first.
    """

    name: str
    mark: str
    roles: Mapping[str, tuple[str, str]]
    stop: str
    reply: str
    begins: bool = False
    strips: bool = False
    folds_system: bool = False

    def pieces(self, messages: Sequence[tuple[str, str]], template: str) -> Iterator[tuple[bool, str]]:
        """(True, text of the format) and (False, text of a message) in order, up to where the reply begins."""
        for role, text in self._completed(messages, template):
            yield from self._turn(role, text)
        yield True, self.reply

    def follow_up(self, text: str) -> Iterator[tuple[bool, str]]:
        """The same for the end of a reply, a user's next message, and the beginning of the next reply."""
        yield True, self.roles["assistant"][1]
        yield from self._turn("user", text.strip() if self.strips else text)
        yield True, self.reply

    def _turn(self, role: str, text: str) -> Iterator[tuple[bool, str]]:
        # A role that the format does not know is said by the user.
        before, after = self.roles.get(role) or self.roles["user"]
        yield True, before
        yield False, text
        yield True, after

    def _completed(self, messages: Sequence[tuple[str, str]], template: str) -> list[tuple[str, str]]:
        if self.strips:
            messages = [(role, text.strip()) for role, text in messages]
        has_system = bool(messages) and messages[0][0] == "system"
        rest = list(messages[1:] if has_system else messages)
        system = messages[0][1] if has_system else next((one for one in _SYSTEMS if one in template), "")
        if self.folds_system:
            if has_system and rest:
                rest[0] = (rest[0][0], f"{system}\n\n{rest[0][1]}")
            return rest
        if _LLAMA_MARK.split(":")[0] in template:
            return [("system", _LLAMA_DATES + system), *rest]
        return [("system", system), *rest] if system else rest


def _alike(before: str, after: str) -> dict[str, tuple[str, str]]:
    return {role: (before.format(role=role), after) for role in ("system", "user", "assistant")}


PLAIN = ChatFormat(
    name="plain",
    mark="",
    roles={"system": ("", "\n"), "user": ("", ""), "assistant": ("", "\n")},
    stop="",
    reply="",
    begins=True,
)
FORMATS = (
    ChatFormat(
        name="chatml",
        mark="<|im_start|>",
        roles=_alike("<|im_start|>{role}\n", "<|im_end|>\n"),
        stop="<|im_end|>",
        reply="<|im_start|>assistant\n",
    ),
    ChatFormat(
        name="llama3",
        mark="<|start_header_id|>",
        roles=_alike("<|start_header_id|>{role}<|end_header_id|>\n\n", "<|eot_id|>"),
        stop="<|eot_id|>",
        reply="<|start_header_id|>assistant<|end_header_id|>\n\n",
        begins=True,
        strips=True,
    ),
    ChatFormat(
        name="mistral",
        mark="[INST]",
        roles={"user": ("[INST] ", " [/INST]"), "assistant": (" ", "</s>")},
        stop="</s>",
        reply="",
        begins=True,
        folds_system=True,
    ),
    ChatFormat(
        name="zephyr",
        mark="<|assistant|>",
        roles=_alike("<|{role}|>\n", "</s>\n"),
        stop="</s>",
        reply="<|assistant|>\n",
    ),
)


def format_of(template: str) -> ChatFormat:
    """The format whose mark a chat template holds; plain text where none is known."""
    return next((one for one in FORMATS if one.mark in template), PLAIN)
