"""Constant operands: brought to the device once, and packed there into each layout that a product needs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.device.arrays import Kind
from autotune.device.port import Memory
from autotune.model.plan import Buffer
from autotune.model.problem import Problem
from autotune.runtime.choice import Choice
from autotune.runtime.executor import BoundCall, Statistics, Transfer
from autotune.runtime.layout import Layout


@dataclass(frozen=True, kw_only=True, eq=False)
class Ready:
    """A problem whose kernels are built, with their constant arguments set."""

    problem: Problem
    choice: Choice
    call: BoundCall
    """Takes the operands, the constant one packed, and then `views` over that."""
    bound: Callable[[Sequence[Memory]], BoundCall]
    """Returns a call that takes none, with those of `call` set for good."""
    packing: BoundCall | None
    """Packs the constant operand into the layout that `call` needs; None where `call` packs it, or nothing does."""
    unpacking: Callable[[], BoundCall] | None
    """Returns a call, with the same operands, that undoes `packing`; None where nothing does."""
    packed: Buffer
    """Buffer of the constant operand in that layout, or of the operand itself."""
    views: tuple[Buffer, ...]
    """Images over the packed operand."""
    packing_number: int
    """Equal for problems that can use the same packed operand."""
    form_number: int
    """Equal for those that can use the same views of it, too."""


class Prepared:
    """A constant operand; base of what `prepare` returns."""

    name = ""
    """As messages show it."""

    def __init__(self, owner: object, stats: Statistics, operand: Any, kind: Kind, *form: object) -> None:
        """`owner` made it and counts its bytes in `stats`; `form` is equal for operands that are handled alike."""
        self.owner = owner
        self.operand, self.kind = operand, kind
        self.form = ("prepared", id(owner), kind, *form)
        self._stats = stats
        self._packed: dict[int, tuple[Memory, int, Callable[[], BoundCall] | None]] = {}
        """Each layout, with its bytes, and `Ready.unpacking`."""
        self._views: dict[int, tuple[Memory, ...]] = {}
        """The packed operand and the views over it that kernels take."""
        stats.prepared.add(self)

    @property
    def size_bytes(self) -> int:
        """Bytes that it takes on the device in addition to the operand that was passed."""
        return sum(size for _, size, _ in list(self._packed.values()))

    def memory(self, ready: Ready, transfer: Transfer) -> tuple[Memory, ...]:
        """Return the operand in the layout that kernels need, packed now if it is new, and `ready.views` over it."""
        if ready.packing is None:
            return (self._plain(transfer),)
        return self._views.get(ready.form_number) or self._pack(ready, transfer)

    def release(self) -> None:
        """Free what was packed for it; a later product packs it again. Bound products keep what they use."""
        self._packed.clear()
        self._views.clear()

    def _pack(self, ready: Ready, transfer: Transfer) -> tuple[Memory, ...]:
        assert ready.packing
        port, number = transfer.executor.port, ready.packing_number
        if number not in self._packed:
            packed = port.allocate(ready.packed)
            ready.packing.enqueue((self._plain(transfer), packed))
            port.finish()  # a port may report only now what it refuses: what was not packed must not be kept
            self._packed[number] = packed, ready.packed.size_bytes, ready.unpacking
            self._stats.packings += 1
        packed, _, _ = self._packed[number]
        views = (port.allocate(view, {view.view_of: packed}) for view in ready.views)
        self._views[ready.form_number] = (packed, *views)
        return self._views[ready.form_number]

    def _plain(self, transfer: Transfer) -> Memory:
        """Return the operand as it was passed, on the device."""
        return transfer.enter(self.operand, self.kind, self.name)


class PreparedMatrix(Prepared):
    """A constant B, packed once for each layout that a product needs; made by `Gemm.prepare`."""

    name = "b"

    def __init__(
        self,
        owner: object,
        stats: Statistics,
        operand: Any,
        kind: Kind,
        layout: Layout,
        *,
        is_transposed: bool,
        copied_bytes: int = 0,
    ) -> None:
        """`copied_bytes` is the size of an operand that is a copy made by `prepare`."""
        self.layout, self.is_transposed = layout, is_transposed
        self._copied_bytes = copied_bytes
        super().__init__(owner, stats, operand, kind, layout, is_transposed)

    @property
    def size_bytes(self) -> int:
        return super().size_bytes + self._copied_bytes

    def __repr__(self) -> str:
        return f"<PreparedMatrix {self.layout.shape} {self.layout.dtype}, packed in {len(self._packed)} layouts>"

    def _plain(self, transfer: Transfer) -> Memory:
        """Return it; memory of the port already where `prepare` has copied a NumPy array."""
        return self.operand if self.kind is Kind.BUFFER else super()._plain(transfer)
