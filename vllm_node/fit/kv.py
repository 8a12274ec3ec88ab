"""What a model keeps for each token, and how vLLM cuts memory into blocks for it.

The rules are those of vLLM 0.32.0: layers of one kind share a table of blocks; where there are several kinds, each is
cut into groups of as many layers as the rarest kind has (as the most frequent one when they are nearly alike), every
group takes blocks of its own, and all blocks are of one size. A layer with a window keeps the window and what is
computed at the moment. docs/plan.md shows what these rules gave against real servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from vllm_node.fit.settings import Settings
from vllm_node.fit.shape import Shape

# Bytes of an element of the cache. Formats that are not here keep their scales among the values in ways of their own.
_ELEMENT: Mapping[str, float] = {
    "float16": 2, "half": 2, "bfloat16": 2, "float32": 4, "float": 4,
    "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1,
    # 4 bits a value and a scale of 8 bits for each 16 of them.
    "nvfp4": 0.5625, "nvfp4_4over6": 0.5625,
}  # fmt: skip
# Bytes of a token in one layer of sparse MLA: values, the rotary part and scales in one piece.
_PACKED = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
_BLOCK, _BLOCK_LATENT, _BLOCK_CPU = 16, 64, 128


@dataclass(frozen=True)
class Kind:
    """Layers on one GPU that keep the same. token_bytes: of one layer; 0 for layers that keep a state."""

    name: str
    layers: int
    token_bytes: float
    state_bytes: float = 0.0


@dataclass(frozen=True)
class Cache:
    """How the cache of one GPU is cut.

    groups: (kind, how many groups of it, tokens of one of its blocks). states: blocks of a request in a group of layers
    with a state; with prefix caching one is kept beside the one that is worked on.
    """

    block_size: int
    block_bytes: float
    groups: tuple[tuple[str, int, int], ...]
    window: int | None
    chunk: int | None
    in_flight: int
    states: int = 2

    def request_blocks(self, tokens: int) -> int:
        """Blocks that one request of so many tokens takes at its end."""
        return sum(count * self._blocks(kind, size, tokens) for kind, count, size in self.groups)

    def _blocks(self, kind: str, size: int, tokens: int) -> int:
        if kind == "sliding":
            # The window may begin in the middle of a block.
            return ceil(min((self.window or tokens) - 1 + self.in_flight, tokens) / size) + 1
        if kind == "chunked":
            return ceil(min((self.chunk or tokens) + self.in_flight, tokens) / size)
        return self.states if kind == "state" else ceil(tokens / size)

    def blocks(self, memory: float) -> int:
        """Blocks that fit into so many bytes."""
        return max(0, int(memory // self.block_bytes))

    def capacity(self, memory: float, length: int) -> tuple[float, int]:
        """Requests of full length that fit, and the tokens that vLLM then calls the size of its cache."""
        requests = self.blocks(memory) / self.request_blocks(length)
        return requests, int(requests * length)

    def holds(self, memory: float, length: int) -> bool:
        """Whether vLLM would start: one request of full length, beside the one block that is never given away."""
        return self.blocks(memory) - 1 >= self.request_blocks(length)

    def longest(self, memory: float, most: int) -> int:
        """The longest request that fits, at most `most` tokens; 0 when none does."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.holds(memory, middle) else (low, middle - 1)
        return low

    def token_bytes(self, length: int) -> float:
        """Bytes of a token on one GPU, on the average of a request of this length."""
        return self.request_blocks(length) * self.block_bytes / length


def kv_dtype(shape: Shape, settings: Settings) -> str:
    """The type of the cache's elements, by name; `auto` of vLLM resolved."""
    if settings.kv_dtype != "auto":
        return settings.kv_dtype
    if shape.kv_dtype:
        return shape.kv_dtype
    if shape.index:
        return "fp8_ds_mla"
    return settings.dtype or shape.dtype


def cut(shape: Shape, settings: Settings, *, cpu: bool = False, in_flight: int) -> Cache | None:
    """The cache of one GPU; None for a type of elements whose size is not known. `in_flight`: tokens being computed."""
    kinds = _kinds(shape, settings)
    if kinds is None:
        return None
    block = settings.block_size or _default_block(shape, cpu)
    if not settings.hybrid and any(kind.name in ("sliding", "chunked") for kind in kinds):
        kinds = _all_full(kinds)
    state = max((kind.state_bytes for kind in kinds), default=0)
    if state and any(kind.token_bytes for kind in kinds):
        # The blocks of attention are made as large as a state, so that both fit the same place.
        smallest = min(kind.token_bytes for kind in kinds if kind.token_bytes)
        block = max(block, ceil(state / smallest / 16) * 16)
    page = max(max(kind.token_bytes * block for kind in kinds), state)
    sizes = [kind.layers for kind in kinds]
    width = min(sizes) if max(sizes) >= min(sizes) * 1.5 else max(sizes)
    groups = tuple((kind.name, ceil(kind.layers / width), _tokens(kind, page, block)) for kind in kinds)
    return Cache(block, page * width, groups, shape.window, shape.chunk, in_flight, 2 if settings.prefix_caching else 1)


def _tokens(kind: Kind, page: float, block: int) -> int:
    """A layer that keeps less for a token has more tokens in a block, where whole blocks go in."""
    if not kind.token_bytes:
        return block
    times = page / (kind.token_bytes * block)
    return block * int(times) if times == int(times) else block


def _default_block(shape: Shape, cpu: bool) -> int:
    if cpu:
        return _BLOCK if shape.latent else _BLOCK_CPU
    return _BLOCK_LATENT if shape.latent else _BLOCK


def _all_full(kinds: list[Kind]) -> list[Kind]:
    full = [kind for kind in kinds if kind.name != "state"]
    merged = Kind("full", sum(kind.layers for kind in full), max(kind.token_bytes for kind in full))
    return [merged, *(kind for kind in kinds if kind.name == "state")]


def _kinds(shape: Shape, settings: Settings) -> list[Kind] | None:
    dtype = kv_dtype(shape, settings)
    found = []
    for name, layers in shape.kinds.items():
        size = _token_bytes(shape, settings, dtype, name)
        if size is None:
            return None
        state = _state_bytes(shape, settings) if name == "state" else 0.0
        found.append(Kind(name, ceil(layers / settings.pp), 0.0 if name == "state" else size, state))
    return found


def _token_bytes(shape: Shape, settings: Settings, dtype: str, kind: str) -> float | None:
    """Bytes of a token in one layer on one GPU."""
    if shape.latent:
        # One latent for all heads: every GPU keeps all of it. The indexer keeps 8 bits a value and a scale for 128.
        index = shape.index + 4 * shape.index / 128
        if dtype in _PACKED:
            return _PACKED[dtype] + index
        element = _ELEMENT.get(dtype)
        return None if element is None else shape.latent * element + index
    element = _ELEMENT.get(dtype)
    if element is None:
        return None
    heads, head_dim = shape.kv_heads, shape.head_dim
    if kind == "full" and "sliding" in shape.kinds:
        heads, head_dim = shape.global_kv_heads or heads, shape.global_head_dim or head_dim
    # With fewer heads than GPUs each GPU keeps one all the same.
    return max(1, heads // settings.tp) * head_dim * 2 * element


def _state_bytes(shape: Shape, settings: Settings) -> float:
    """Bytes of a gated delta net's state in one layer on one GPU; 0 where the form of the state is not known."""
    if shape.gdn is None:
        return 0.0
    key_heads, value_heads, key_dim, value_dim, kernel = shape.gdn
    convolution = (2 * key_heads * key_dim + value_heads * value_dim) * (kernel - 1) * shape.dtype_bytes
    recurrent = value_heads * key_dim * value_dim * 4
    return (convolution + recurrent) / settings.tp
