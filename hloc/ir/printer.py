"""Module to HLO text, in XLA's default form.

In: a Module, Computation or Instruction. Out: text that the parser, and XLA's, reads back as the same. Example:

    print_instruction(add)      %sum = f32[2]{0} add(%a, %b), metadata={op_name="sum"}

canonical=True makes the texts of equal modules equal: names are numbered, metadata and tables are omitted.
elide_constants=True prints large constants as {...}: a short text that cannot run.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from hloc.ir.attributes import ConvolutionDimensionNumbers, PaddingDim, SliceDim, Window
from hloc.ir.literal_printer import print_literal
from hloc.ir.shapes import Shape

if TYPE_CHECKING:                  # modules print themselves
    from hloc.ir.module import Computation, Instruction, Module

ELIDED_FROM = 11      # elements from which a constant is large

# XLA's order of attributes. A key that is not here stands before parameter_replication.
_ORDER = """channel_id replica_groups source_target_pairs constrain_layout
    window dim_labels batch_group_count feature_group_count
    lhs_batch_dims lhs_contracting_dims rhs_batch_dims rhs_contracting_dims algorithm lhs_ragged_dims operand_precision
    rhs_group_dims offset_dims collapsed_slice_dims start_index_map operand_batching_dims start_indices_batching_dims
    update_window_dims inserted_window_dims scatter_dims_to_operand_dims input_batching_dims
    scatter_indices_batching_dims index_vector_dim slice_sizes indices_are_sorted unique_indices
    dimensions use_global_device_ids num_carries is_reverse is_associative is_stable
    epsilon feature_index exponent_bits mantissa_bits fft_type fft_length direction type index k largest padding slice
    distribution delta dynamic_slice_sizes is_host_transfer iota_dimension infeed_config outfeed_shape outfeed_config
    left_side lower unit_diagonal transpose_a domain cross_program_prefetch_index kind custom_call_target
    operand_layout_constraints custom_call_has_side_effect output_to_operand_aliasing literal schedule api_version
    result_accuracy condition body select scatter true_computation false_computation branch_computations to_apply
    is_composite calls called_computations""".split()
_LAST = "parameter_replication sharding frontend_attributes control-predecessors statistics origin metadata " \
        "backend_config".split()
_RANK = {key: i for i, key in enumerate(_ORDER)} | {key: len(_ORDER) + 1 + i for i, key in enumerate(_LAST)}
_UNKNOWN = len(_ORDER)
# Only reduce-scatter prints its dimensions after use_global_device_ids.
_REDUCE_SCATTER = _RANK | {"dimensions": _RANK["use_global_device_ids"] + 0.5}
_NOT_CANONICAL = frozenset(["metadata", "origin", "statistics"])
_NOT_CANONICAL_HEADER = frozenset(["frontend_attributes", "origin_recovery_table", "debug_attributes"])


def print_module(module: Module, canonical: bool = False, elide_constants: bool = False) -> str:
    """The whole module; ends with a line end."""
    printer = _Printer(canonical, elide_constants)
    printer.number_names(module)
    parts = [printer.header(module)]
    if module.tables and not canonical:
        parts.append(module.tables)
    parts += [printer.computation(c, c is module.entry) for c in module.computations]
    return "\n\n".join(parts) + "\n"


def module_lines(module: Module, elide_constants: bool = False) -> Iterator[tuple[str, Instruction | None]]:
    """The lines of print_module, each with the instruction that it is."""
    printer = _Printer(False, elide_constants)
    heads = [printer.header(module), module.tables] if module.tables else [printer.header(module)]
    for head in heads:
        yield from ((line, None) for line in (*head.split("\n"), ""))
    for n, computation in enumerate(module.computations):
        if n:
            yield "", None
        yield from printer.lines(computation, computation is module.entry)


def print_instruction(instruction: Instruction, elide_constants: bool = False) -> str:
    """One instruction, without ROOT."""
    return _Printer(False, elide_constants).instruction(instruction)


def print_attribute(value: Any) -> str:
    """The text of an attribute's value, after key=."""
    return _Printer(False, False).value(value)


class _Printer:
    """Prints with one set of options."""

    def __init__(self, canonical: bool, elide_constants: bool):
        self.canonical = canonical
        self.elide_from = ELIDED_FROM if elide_constants else None
        self.names: dict[Instruction | Computation, str] = {}       # only when canonical
        self.shape_texts: dict[int, str] = {}                       # by id: instructions share their shapes

    def number_names(self, module: Module) -> None:
        """Assign canonical names: by opcode and position."""
        if not self.canonical:
            return
        for i, computation in enumerate(module.computations):
            self.names[computation] = "entry" if computation is module.entry else f"computation.{i}"
            for j, instruction in enumerate(computation.instructions):
                self.names[instruction] = f"{instruction.opcode}.{j}"

    def name(self, thing: Instruction | Computation) -> str:
        return "%" + (self.names.get(thing) or thing.name if self.names else thing.name)

    def header(self, module: Module) -> str:
        scheduled = ["is_scheduled=true"] if module.is_scheduled else []
        rest = [f"{k}={v}" for k, v in module.attributes.items() if not (self.canonical and k in _NOT_CANONICAL_HEADER)]
        name = "module" if self.canonical else module.name
        return ", ".join([f"HloModule {name}", *scheduled, *rest])

    def computation(self, computation: Computation, is_entry: bool) -> str:
        return "\n".join(line for line, _ in self.lines(computation, is_entry))

    def lines(self, computation: Computation, is_entry: bool) -> Iterator[tuple[str, Instruction | None]]:
        """From the name to the closing brace, each line with the instruction that it is."""
        parameters = ", ".join(f"{self.name(p)[1:]}: {p.shape.to_string(False)}" for p in computation.parameters)
        result = computation.root.shape.to_string(False)
        head = f"{'ENTRY ' if is_entry else ''}{self.name(computation)} ({parameters}) -> {result} {{"
        yield head, None
        for i in computation.instructions:
            for line in f"  {'ROOT ' if i is computation.root else ''}{self.instruction(i)}".split("\n"):
                yield line, i
        yield "}" + "".join(f", {k}={v}" for k, v in computation.attributes.items()), None

    def instruction(self, instruction: Instruction) -> str:
        shape = self.shape(instruction.shape)
        text = f"{self.name(instruction)} = {shape} {instruction.opcode}({self.operands(instruction)})"
        if not instruction.attributes and not instruction.control_predecessors:
            return text
        attributes = [f"{key}={self.value(value)}" for key, value in self.attributes(instruction)]
        return ", ".join([text, *attributes])

    def shape(self, shape: Shape) -> str:
        text = self.shape_texts.get(id(shape))
        if text is None:
            text = self.shape_texts[id(shape)] = str(shape)
        return text

    def operands(self, instruction: Instruction) -> str:
        if instruction.opcode == "parameter":
            return str(instruction.parameter_number)
        if instruction.opcode == "constant":
            return print_literal(instruction.shape, instruction.literal, self.elide_from)
        return _listed([self.name(o) for o in instruction.operands])

    def attributes(self, instruction: Instruction) -> Iterable[tuple[str, Any]]:
        """Keys and values in XLA's order."""
        items = list(instruction.attributes.items())
        if instruction.control_predecessors:
            items.append(("control-predecessors", instruction.control_predecessors))
        if self.canonical:
            items = [(k, v) for k, v in items if k not in _NOT_CANONICAL]
        rank = _REDUCE_SCATTER if instruction.opcode.startswith("reduce-scatter") else _RANK
        return sorted(items, key=lambda item: rank.get(item[0], _UNKNOWN)) if len(items) > 1 else items

    def value(self, value: Any) -> str:
        """The text of an attribute's value."""
        if isinstance(value, str):
            return value
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, (int, float)):
            return repr(value)
        if hasattr(value, "instructions"):                     # a computation
            return self.name(value)
        if isinstance(value, Window):
            return _window(value)
        if isinstance(value, ConvolutionDimensionNumbers):
            return _dim_labels(value)
        return self.sequence(value)

    def sequence(self, value: tuple) -> str:
        first = value[0] if value else None
        if hasattr(first, "name"):                             # computations or instructions
            return "{" + ", ".join(self.name(v) for v in value) + "}"
        if isinstance(first, SliceDim):
            return _slice(value)
        if isinstance(first, PaddingDim):
            return _padding(value)
        return "{" + ",".join(map(str, value)) + "}"


def _listed(names: list[str]) -> str:
    """Names with /*index=5*/ before every fifth."""
    if len(names) <= 5:
        return ", ".join(names)
    return ", ".join(f"/*index={i}*/{n}" if i and i % 5 == 0 else n for i, n in enumerate(names))


def _window(window: Window) -> str:
    """The text of a window; fields with the default in every dimension are omitted."""
    dims = window.dimensions
    fields: list[tuple[str, list[Any], Any]] = [
              ("size", [d.size for d in dims], None), ("stride", [d.stride for d in dims], 1),
              ("pad", [f"{d.padding_low}_{d.padding_high}" for d in dims], "0_0"),
              ("lhs_dilate", [d.base_dilation for d in dims], 1), ("rhs_dilate", [d.window_dilation for d in dims], 1),
              ("rhs_reversal", [int(d.reversal) for d in dims], 0)]
    shown = [f"{key}={'x'.join(map(str, values))}" for key, values, default in fields
             if any(v != default for v in values)]
    return "{" + " ".join(shown) + "}"


def _dim_labels(numbers: ConvolutionDimensionNumbers) -> str:
    n = numbers
    return (f"{_labels('bf', n.input_batch, n.input_feature, n.input_spatial)}_"
            f"{_labels('io', n.kernel_input_feature, n.kernel_output_feature, n.kernel_spatial)}->"
            f"{_labels('bf', n.output_batch, n.output_feature, n.output_spatial)}")


def _labels(letters: str, first: int, second: int, spatial: tuple[int, ...]) -> str:
    """Labels, with a '?' for a dimension without a role."""
    labels = ["?"] * (max(first, second, *spatial) + 1)
    for i, dimension in enumerate(spatial):
        labels[dimension] = str(i)
    labels[first], labels[second] = letters[0], letters[1]
    return "".join(labels)


def _slice(ranges: tuple[SliceDim, ...]) -> str:
    """XLA prints the strides of all dimensions or of none."""
    strides = any(r.stride != 1 for r in ranges)
    return "{" + ", ".join(f"[{r.start}:{r.limit}:{r.stride}]" if strides else f"[{r.start}:{r.limit}]"
                           for r in ranges) + "}"


def _padding(dimensions: tuple[PaddingDim, ...]) -> str:
    interior = any(d.interior for d in dimensions)
    return "x".join(f"{d.low}_{d.high}_{d.interior}" if interior else f"{d.low}_{d.high}" for d in dimensions)
