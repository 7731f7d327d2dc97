"""Plans for GEMM: which operands are packed, where they are stored, and the launches."""

import math
from dataclasses import replace

from autotune.kernels.combination import counters, is_one_launch, standard_for
from autotune.kernels.gemm.problem import GemmProblem
from autotune.model.configuration import Configuration
from autotune.model.plan import Buffer, Launch, Plan, Role, Scalar

LEAST_COMBINING = 32
"""Least work-items in a work-group that adds up parts; if the product's has fewer, the driver chooses."""

_C_TYPES = {"float32": "float", "float16": "half", "int8": "char", "int32": "int"}


def plan_gemm(problem: GemmProblem, configuration: Configuration) -> Plan:
    """Return the plan: packing if the configuration asks for it, the product, and adding up the parts of a split k."""
    return _Planner(problem, configuration).plan()


class _Operand:
    """Where a kernel finds A or B: buffer, pitch and batch stride in elements. An image has pitch 0, stride in rows."""

    def __init__(self, buffer: str, pitch: int, stride: int, transposed: int) -> None:
        self.buffer = buffer
        self.pitch = pitch
        self.stride = stride
        self.transposed = transposed


class _Planner:
    def __init__(self, problem: GemmProblem, configuration: Configuration) -> None:
        self._problem = problem
        self._algorithm = configuration.algorithm
        self._values = dict(configuration.values)
        tile_m, tile_n = self._number("micro_tile_m"), self._number("micro_tile_n")
        step_k = self._number("unroll")
        if self._algorithm == "local_tile":
            tile_m *= self._number("work_group_m")
            tile_n *= self._number("work_group_n")
            step_k = self._number("tile_k")
        elif self._algorithm == "panel":
            tile_m *= self._number("tiles_m")
        elif self._algorithm in ("dot", "column"):
            step_k *= self._number("vector_width")
        self._tile_m = tile_m
        self._rows, self._columns = _round_up(problem.m, tile_m), _round_up(problem.n, tile_n)
        self._depth = _round_up(problem.k, step_k)
        self._pads = self._values.get("edges") == "pad"
        self._split = self._number("split_k")
        self._is_one_launch = is_one_launch(configuration)
        self._standard = "CL3.0" if self._values.get("integer_dot") == "khr" else standard_for(configuration)
        self._buffers = [
            Buffer(name=name, role=role, dtype=problem.dtype(name), elements=problem.batch * problem.stride(name))
            for name, role in (("a", Role.INPUT), ("b", Role.INPUT), ("c", Role.OUTPUT))
        ]
        self._launches: list[Launch] = []

    def plan(self) -> Plan:
        p = self._problem
        a, b = self._place_a(), self._place_b()
        self._multiply(a, b)
        accumulator, result = _C_TYPES[p.accumulator], _C_TYPES[p.dtype("c")]
        return Plan(
            buffers=tuple(self._buffers),
            launches=tuple(self._launches),
            build_options=self._build_options(),
            template_values=(
                ("stored_type", _C_TYPES[p.dtype("a")]),
                ("sum_type", accumulator),
                ("result_type", result),
                ("trans_a", a.transposed),
                ("trans_b", b.transposed),
                ("batched", int(p.batch > 1)),
                ("ragged_m", int(p.m % self._tile_m != 0)),
                ("ragged_n", int(self._columns != p.n)),
                ("m_remainder", p.m % 4),
                ("n_remainder", p.n % 4),
                ("ragged_k", int(self._depth != p.k and not self._pads)),
                ("c_aligned", int(self._c_aligned)),
            ),
        )

    def _build_options(self) -> tuple[str, ...]:
        values = self._values
        options = {
            "-cl-fast-relaxed-math": values.get("relaxed_math") == "on",
            f"-cl-std={self._standard}": self._standard != "",
            "-qcom-accelerate-16-bit": values.get("qcom_16_bit") == "on",
            f"-cl-nv-maxrregcount={values.get('register_cap')}": values.get("register_cap", 0) != 0,
            f"-fregister-allocation={values.get('register_allocation')}": values.get("register_allocation", 0) != 0,
        }
        return tuple(option for option, is_wanted in options.items() if is_wanted)

    def _place_a(self) -> _Operand:
        p = self._problem
        steps = (1, p.lda) if p.trans_a else (p.lda, 1)
        storage = self._values.get("a_storage", "buffer")
        if storage == "image":
            return self._pack_image("a", steps, (p.m, p.k))
        if storage == "image_view":
            return self._view_as_image("a", (p.m, p.k))
        if self._pads:
            return self._pack("a", steps, (p.m, p.k), "a_packed", (self._rows, self._depth))
        return _Operand("a", p.lda, p.stride_a, p.trans_a)

    def _place_b(self) -> _Operand:
        p = self._problem
        steps = (1, p.ldb) if p.trans_b else (p.ldb, 1)
        storage = self._values.get("b_storage", "buffer")
        if storage == "image":
            return self._pack_image("b", steps, (p.k, p.n))
        if storage == "image_view":
            return self._view_as_image("b", (p.k, p.n))
        if storage == "transposed":
            pitch = _round_up(self._depth, self._number("vector_width"))
            packed = self._pack("b", steps[::-1], (p.n, p.k), "b_packed", (p.n, pitch))
            return _Operand(packed.buffer, packed.pitch, packed.stride, 1)
        if self._pads and self._values.get("integer_dot", "off") != "off":
            return self._pack_quads(steps)
        if self._pads:
            return self._pack("b", steps, (p.k, p.n), "b_packed", (self._depth, self._columns))
        return _Operand("b", p.ldb, p.stride_b, p.trans_b)

    def _pack(
        self, source: str, steps: tuple[int, int], size: tuple[int, int], target: str, packed: tuple[int, int]
    ) -> _Operand:
        """Copy a matrix of `size` (rows, columns) into zero-padded rows without gaps, `packed` (rows, columns) in all.

        `steps` is the elements from row to row and from column to column of the source.
        """
        p = self._problem
        rows, pitch = packed
        self._scratch(target, p.dtype(source), p.batch * rows * pitch)
        numbers = [_int(number) for number in (p.stride(source), *steps, *size)]
        self._launches.append(
            Launch(
                kernel="pack",
                global_size=(pitch, rows, p.batch),
                local_size=None,
                arguments=(source, *numbers, target, _int(pitch)),
                prepares=source,
            )
        )
        return _Operand(target, pitch, rows * pitch, 0)

    def _pack_quads(self, steps: tuple[int, int]) -> _Operand:
        """Copy B into padded rows that hold four elements of k of one column, then the same four of the next column."""
        p = self._problem
        self._scratch("b_packed", p.dtype("b"), p.batch * self._depth * self._columns)
        numbers = [_int(number) for number in (p.stride_b, *steps, p.k, p.n)]
        self._launches.append(
            Launch(
                kernel="pack_quads",
                global_size=(self._columns, self._depth // 4, p.batch),
                local_size=None,
                arguments=("b", *numbers, "b_packed"),
                prepares="b",
            )
        )
        return _Operand("b_packed", 4 * self._columns, self._depth * self._columns, 0)

    def _pack_image(self, source: str, steps: tuple[int, int], size: tuple[int, int]) -> _Operand:
        """Copy a matrix of `size` (rows, columns) into an image: four columns a pixel, a batch stacked vertically."""
        p = self._problem
        rows, columns = size
        image = self._image(f"{source}_image", Role.SCRATCH, p.dtype(source), (columns, rows * p.batch))
        self._buffers.append(image)
        self._launches.append(
            Launch(
                kernel="pack_image",
                global_size=(image.image_width, rows, p.batch),
                local_size=None,
                arguments=(source, *map(_int, (p.stride(source), *steps, rows, columns)), image.name),
                prepares=source,
            )
        )
        return _Operand(image.name, 0, rows, 0)

    def _view_as_image(self, source: str, size: tuple[int, int]) -> _Operand:
        """Read a matrix of `size` (rows, columns) in place as an image, four columns a pixel.

        The last pixel of a row may contain elements from beyond its end.
        """
        p = self._problem
        rows, columns = size
        rows_apart = p.stride(source) // p.pitch(source)
        height = (p.batch - 1) * rows_apart + rows
        image = self._image(f"{source}_image", Role.VIEW, p.dtype(source), (columns, height))
        self._buffers.append(replace(image, view_of=source, row_pitch=p.pitch(source)))
        return _Operand(image.name, 0, rows_apart, 0)

    @staticmethod
    def _image(name: str, role: Role, dtype: str, size: tuple[int, int]) -> Buffer:
        width, height = -(-size[0] // 4), size[1]
        return Buffer(
            name=name, role=role, dtype=dtype, elements=4 * width * height, image_width=width, image_height=height
        )

    def _multiply(self, a: _Operand, b: _Operand) -> None:
        p = self._problem
        size, local = self._work_sizes()
        number = "int32" if p.accumulator == "int32" else "float32"
        scale = (Scalar(dtype=number, name="alpha", value=1.0), Scalar(dtype=number, name="beta"))
        c, ldc, stride_c = "c", p.ldc, p.stride_c
        needs_launch = self._split > 1 and not self._is_one_launch
        if needs_launch:
            c, ldc, stride_c = "c_parts", p.n, p.m * p.n
            self._scratch(c, p.accumulator, self._split * p.batch * p.m * p.n)
        k = self._depth if self._pads else p.k
        operands = (a.buffer, _int(a.pitch), _int(a.stride), b.buffer, _int(b.pitch), _int(b.stride))
        sizes = (_int(p.m), _int(p.n))
        self._launches.append(
            Launch(
                kernel="gemm",
                global_size=(*size, self._split * p.batch),
                local_size=(*local, 1) if local else None,
                arguments=(*operands, c, _int(ldc), _int(stride_c), *sizes, _int(k), *scale, *self._place_parts()),
            )
        )
        if needs_launch:
            self._combine((c, "c", _int(p.ldc), _int(p.stride_c), *sizes, *scale))

    def _place_parts(self) -> tuple[str, ...]:
        """For a single launch: add buffers for the parts, ordered by macro-tile, and for a counter per macro-tile.

        Return their names, which are further arguments of the kernel.
        """
        if not self._is_one_launch:
            return ()
        p = self._problem
        (across, down), local = self._work_sizes()
        assert local
        high = local[1] if self._algorithm == "local_tile" else 1
        tiles = across // local[0] * (down // local[1]) * p.batch
        in_tile = local[0] * self._number("micro_tile_n") * high * self._number("micro_tile_m")
        self._scratch("c_parts", p.accumulator, self._split * tiles * in_tile)
        self._buffers.append(counters(tiles))
        return "c_parts", "counters"

    def _combine(self, arguments: tuple[str | Scalar, ...]) -> None:
        """Launch the sum of the parts: a vector of C per work-item, in work-groups as large as the product's."""
        p = self._problem
        _, local = self._work_sizes()
        items = math.prod(local or (1,))
        vectors = -(-p.m * p.n // (4 if self._c_aligned else 1))
        self._launches.append(
            Launch(
                kernel="combine",
                global_size=(_round_up(vectors, max(items, LEAST_COMBINING)), p.batch),
                local_size=(items, 1) if items >= LEAST_COMBINING else None,
                arguments=arguments,
            )
        )

    @property
    def _c_aligned(self) -> bool:
        """Whether every row of C and of its parts consists of whole aligned vectors of four."""
        return self._problem.ldc % 4 == 0 and self._problem.n % 4 == 0 and self._problem.stride_c % 4 == 0

    def _work_sizes(self) -> tuple[tuple[int, int], tuple[int, int] | None]:
        """Return global and local size in dimensions 0 and 1; the local size is None if the driver chooses it."""
        p = self._problem
        across, down = -(-p.n // self._number("micro_tile_n")), -(-p.m // self._number("micro_tile_m"))
        wide, high, deep = (self._number(f"work_group_{x}") for x in "nmk")
        if self._algorithm == "row":
            return (_round_up(across, wide), down * deep), (wide, deep)
        if self._algorithm == "column":
            return (across * deep, _round_up(down, high)), (deep, high)
        if self._algorithm == "panel":
            return (across, -(-p.m // self._tile_m)), (1, 1)
        if wide == 0:
            return (across, down), None
        return (_round_up(across, wide), _round_up(down, high)), (wide, high)

    def _scratch(self, name: str, dtype: str, elements: int) -> None:
        self._buffers.append(Buffer(name=name, role=Role.SCRATCH, dtype=dtype, elements=elements))

    def _number(self, name: str) -> int:
        value = self._values.get(name, 1)
        assert isinstance(value, int)
        return value


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _int(value: int) -> Scalar:
    return Scalar(dtype="int32", value=value)
