"""The workload of a network, and the members of a configuration, which are bounded."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.errors import UsageError
from autotune.kernels.qgemm.formats import FORMATS
from autotune.networks.operation import MAX_SIZE
from autotune.networks.transformer import Tokens


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The steps to list, of a model that has them."""

    prompt: int = 0
    """Tokens of a prompt; 0 for no such step."""
    depth: int = 0
    """Tokens in the cache once one more is written; 0 for no such step."""
    image: tuple[int, int] | None = None
    """Height and width; None for what the model was made for."""
    batch: int = 1

    def of_decoder(self) -> Iterator[tuple[str, Tokens]]:
        """Yield the title of each step of a language model, and what it takes in."""
        several = f"{self.batch} x " if self.batch > 1 else ""
        if self.prompt:
            tokens = Tokens(count=self.prompt, keys=self.prompt, sequences=self.batch)
            yield f"{several}a prompt of {self.prompt} tokens", tokens
        if self.depth:
            tokens = Tokens(count=1, keys=self.depth, sequences=self.batch)
            yield f"{several}one token with {self.depth} in the cache", tokens


class Settings:
    """The members of a configuration. Every method raises UsageError for a value that cannot be."""

    def __init__(self, members: Mapping[str, Any]) -> None:
        self._members = members

    def get(self, name: str) -> Any:
        return self._members.get(name)

    def part(self, name: str) -> "Settings":
        found = self._members.get(name)
        if not isinstance(found, dict):
            raise UsageError(f"has no {name}")
        return Settings(found)

    def text(self, name: str) -> str:
        found = self._members.get(name)
        return found if isinstance(found, str) else ""

    def truth(self, name: str, *, default: bool) -> bool:
        found = self._members.get(name)
        return found if isinstance(found, bool) else default

    def size(self, *names: str, default: int | None = None) -> int:
        """Return the first of these that is there, else the default."""
        name = next((name for name in names if self._members.get(name) is not None), None)
        if name is None and default is not None:
            return default
        if name is None:
            raise UsageError(f"{names[0]} is missing", hint="is it the config.json of a model?")
        found = self._members[name]
        if type(found) is not int or not 0 <= found <= MAX_SIZE or (found == 0 and default != 0):
            raise UsageError(f"{name} is {str(found)[:40]!r}, not a size")
        return found

    def sizes(self, name: str) -> tuple[int, ...]:
        """Return a list of at most 64 sizes."""
        found = self._members.get(name)
        if not isinstance(found, list) or not 1 <= len(found) <= 64:
            raise UsageError(f"{name} must be a list of 1 to 64 sizes")
        return tuple(Settings({name: one}).size(name) for one in found)

    def fraction(self, *names: str) -> float:
        """Return the first number that is there, 1 without any."""
        found = next((self._members[name] for name in names if name in self._members), 1)
        return found if isinstance(found, int | float) and 0 < found <= 1 else 1

    def labels(self, least: int) -> int:
        """Return the outputs of a classifier; 0 where there are fewer than `least`, or names say there is none."""
        named = self._members.get("id2label")
        count = len(named) if isinstance(named, dict) else self.size("num_labels", default=0)
        is_classifier = "Classification" in str(self._members.get("architectures"))[:400]
        return count if count >= max(least, 1) and (least or is_classifier) else 0

    def windows(self, kind: str, layers: int) -> tuple[int, int]:
        """Return the window of attention and how many layers have it; 0 and 0 where there is none."""
        window = self.size("sliding_window", default=0)
        kinds = self._members.get("layer_types")
        if not window or (kind.startswith("qwen") and not self.truth("use_sliding_window", default=False)):
            return 0, 0
        if isinstance(kinds, list):
            windowed = min(kinds.count("sliding_attention"), layers)
            return (window, windowed) if windowed else (0, 0)
        every = {"gemma2": 2, "gemma3_text": self.size("sliding_window_pattern", default=6)}.get(kind, 0)
        return window, layers - layers // every if every else layers

    @property
    def method(self) -> str:
        """How the weights are quantised; empty if they are not, or the configuration does not say."""
        stated = self._members.get("quantization_config")
        return Settings(stated).text("quant_method")[:20] if isinstance(stated, dict) else ""

    def quantised(self, dtype: str) -> tuple[str, str]:
        """Return the format of the layers' weights, `dtype` for plain ones, and a note where that is not the stored."""
        stated = self._members.get("quantization_config")
        if not isinstance(stated, dict) or self.method == "mxfp4":  # which only experts have
            return dtype, ""
        settings = Settings(stated)
        bits = settings.size("bits", "w_bit", default=0)
        has_zeros = settings.truth("zero_point", default=not settings.truth("sym", default=False))
        name = f"int4{'z' if has_zeros else ''}-g{settings.size('group_size', 'q_group_size', default=0)}"
        if self.method in ("gptq", "awq") and bits == 4 and name in FORMATS:
            return name, ""
        return dtype, f"{dtype} stands for weights quantised by {self.method or 'an unknown method'}"
