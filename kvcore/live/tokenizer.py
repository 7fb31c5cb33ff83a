"""Text into token ids and back, from a model folder's tokenizer.json; no code of a repository is run.

A chat template is never executed: it is only looked at for the marks of a format that is known here, as data. While a
text is streamed, a character whose bytes are spread over several tokens is never split.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kvcore.errors import LiveError

TOKENIZER = "tokenizer.json"
# The largest in use (Gemma's) take 33 MB.
MAX_TOKENIZER_BYTES = 80_000_000
_MAX_SMALL_BYTES = 4_000_000
_ID_LIMIT = 2**32  # The library keeps ids in 32 bits; those that no token has give no text.
# Decoders whose text is what the models here mean: byte-level BPE, and SentencePiece with byte fallback.
_DECODERS = ({"ByteLevel"}, {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"})
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


class TextStream(Protocol):
    """Text that comes token by token."""

    def push(self, token_id: int) -> str:
        """The whole characters that this token completes, possibly none."""

    def end(self) -> str:
        """What is left at the end: U+FFFD where the last character never became whole."""


class Tokenizer(Protocol):
    """What the live engine needs of a model's tokenizer."""

    @property
    def vocab_size(self) -> int:
        """How many ids there are, those of added tokens included; a model's embedding may have more rows."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end a reply."""

    def encode(self, text: str) -> list[int]:
        """The ids of a text as transformers gives them: with the first token that the model's files ask for."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; special tokens give nothing, nor do ids that the tokenizer has not."""

    def stream(self) -> TextStream:
        """A new decoder for a text that comes token by token."""

    def chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """The ids of (role, text) messages in the model's own format, ending where its reply begins."""

    def follow_up(self, text: str) -> list[int]:
        """The ids that end the model's reply, hold a user's next message, and end where the next reply begins.

        They continue a conversation whose cache is kept. Where the reply ended with a stop token that the cache already
        holds, leave out the first id if it is that token.
        """


class FolderTokenizer:
    """The tokenizer of a model folder, for one thread; LiveError where its files are missing or not understood."""

    def __init__(self, folder: Path) -> None:
        text = _read(folder / TOKENIZER, MAX_TOKENIZER_BYTES)
        settings = _object(folder / "tokenizer_config.json")
        self._library = _library(text)
        described = _parsed(text, TOKENIZER)
        _check_decoder(described.get("decoder"))
        added = described.get("added_tokens") or []
        self._added = {int(one["id"]): str(one["content"]) for one in added}
        self._special = frozenset(int(one["id"]) for one in added if one.get("special"))
        self.vocab_size = int(self._library.get_vocab_size(with_added_tokens=True))
        template = _template(folder, settings)
        self.format: ChatFormat = format_of(template)
        self._template = template
        self.stop_ids = self._stops(folder, settings)

    def encode(self, text: str) -> list[int]:
        return [int(one) for one in self._library.encode(_valid(text)).ids]

    def decode(self, ids: Sequence[int]) -> str:
        known = [one for one in ids if 0 <= one < _ID_LIMIT]
        return str(self._library.decode(known, skip_special_tokens=True))

    def stream(self) -> TextStream:
        return _TokenStream(self._library)

    def chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        begin = self.encode("") if self.format.begins else []
        return begin + self._ids(self.format.pieces(messages, self._template))

    def follow_up(self, text: str) -> list[int]:
        return self._ids(self.format.follow_up(text))

    def _ids(self, pieces: Iterable[tuple[bool, str]]) -> list[int]:
        """The ids of pieces: (True, text of the format, in which marks are tokens) or (False, text of a message)."""
        marks = {text: number for number, text in self._added.items() if number in self._special}
        split = re.compile("|".join(map(re.escape, sorted(marks, key=len, reverse=True))) or r"(?!)")
        ids: list[int] = []
        run = ""
        for is_format, text in pieces:
            at = 0
            for mark in split.finditer(text) if is_format else ():
                ids += self._text_ids(run + text[at : mark.start()])
                ids.append(marks[mark[0]])
                run, at = "", mark.end()
            run += text[at:]
        return ids + self._text_ids(run)

    def _text_ids(self, text: str) -> list[int]:
        """The ids of text alone: a message may spell a special token, which is then only text."""
        if not text:
            return []
        # A switch of the library's tokenizer; loading a second one takes as long as loading the first.
        self._library.encode_special_tokens = True
        try:
            return [int(one) for one in self._library.encode(_valid(text), add_special_tokens=False).ids]
        finally:
            self._library.encode_special_tokens = False

    def _stops(self, folder: Path, settings: Mapping[str, Any]) -> frozenset[int]:
        found: set[int] = set()
        for name in ("generation_config.json", "config.json"):
            stated = _object(folder / name).get("eos_token_id")
            found |= {one for one in (stated if isinstance(stated, list) else [stated]) if type(one) is int}
        eos = settings.get("eos_token")
        texts = {eos.get("content") if isinstance(eos, Mapping) else eos, self.format.stop}
        found |= {number for number, text in self._added.items() if text in texts}
        return frozenset(found)


class ByteTokenizer:
    """Bytes as ids, for models with random weights, whose text means nothing: any id gives one visible character."""

    stop_ids: frozenset[int] = frozenset()

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def encode(self, text: str) -> list[int]:
        return [byte % self.vocab_size for byte in text.encode("utf-8", "replace")]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(_character, ids))

    def stream(self) -> TextStream:
        return _CharacterStream()

    def chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        return self.encode("\n".join(text for _, text in messages))

    def follow_up(self, text: str) -> list[int]:
        return self.encode("\n" + text)


class _TokenStream:
    """The library's own streaming decode, with the ids whose text it still holds back."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._held: list[int] = []
        self._stream = self._new_stream()

    def push(self, token_id: int) -> str:
        if not 0 <= token_id < _ID_LIMIT:
            return ""
        self._held.append(token_id)
        try:
            text: str = self._stream.step(self._library, token_id) or ""
        except Exception:  # The library raises plain Exception.
            # A whole character was followed by bytes that are none, and byte fallback now spells their run otherwise.
            text = self.end()
            self._stream = self._new_stream(self._held)
        if text:
            self._held = []
        return text

    def end(self) -> str:
        return str(self._library.decode(self._held, skip_special_tokens=True))

    def _new_stream(self, before: Sequence[int] = ()) -> Any:
        from tokenizers.decoders import DecodeStream

        return DecodeStream(ids=list(before), skip_special_tokens=True)


class _CharacterStream:
    """Each id is a character, so that nothing is ever held back."""

    def push(self, token_id: int) -> str:
        return _character(token_id)

    def end(self) -> str:
        return ""


def _character(token_id: int) -> str:
    return chr(0x21 + token_id % 94)


def _check_decoder(decoder: Any) -> None:
    """LiveError where the decoder in tokenizer.json is not one of those whose text is known to be right."""
    steps = decoder.get("decoders", [decoder]) if isinstance(decoder, Mapping) else []
    kinds = {str(step.get("type")) for step in steps if isinstance(step, Mapping)}
    if not kinds or not any(kinds <= known for known in _DECODERS):
        raise LiveError(
            f"{TOKENIZER}: its decoder ({', '.join(sorted(kinds)) or 'none'}) is not understood; "
            "byte-level BPE and SentencePiece with byte fallback are"
        )


def _library(text: str) -> Any:
    """A new tokenizer of the `tokenizers` library; LiveError where it refuses the file."""
    try:
        import tokenizers
    except ImportError:
        raise LiveError("the package `tokenizers` is not installed; install requirements.txt for real models") from None
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as problem:  # The library raises plain Exception.
        raise LiveError(f"{TOKENIZER} is not understood by the tokenizers library: {problem}") from None


def _template(folder: Path, settings: Mapping[str, Any]) -> str:
    """The text of the folder's chat template, which is only looked at; empty where it has none."""
    separate = folder / "chat_template.jinja"
    if separate.is_file():
        return _read(separate, _MAX_SMALL_BYTES)
    found = settings.get("chat_template")
    if isinstance(found, list):  # Several, by name.
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, Mapping)}
        found = named.get("default")
    return found if isinstance(found, str) else ""


def _object(path: Path) -> dict[str, Any]:
    """A small JSON file's object; empty where there is no such file."""
    return _parsed(_read(path, _MAX_SMALL_BYTES), path.name) if path.is_file() else {}


def _parsed(text: str, name: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise LiveError(f"{name} is not valid JSON") from None
    if not isinstance(found, dict):
        raise LiveError(f"{name} is not a JSON object")
    return found


def _read(path: Path, limit: int) -> str:
    try:
        with path.open("rb") as stream:
            data = stream.read(limit + 1)
    except OSError as problem:
        raise LiveError(f"{path.name} cannot be read: {problem.strerror or problem}") from None
    if len(data) > limit:
        raise LiveError(f"{path.name} is larger than {limit:,} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise LiveError(f"{path.name} is not UTF-8 text") from None


def _valid(text: str) -> str:
    """The text without lone surrogates, which no tokenizer can take."""
    return text.encode("utf-8", "replace").decode("utf-8")
