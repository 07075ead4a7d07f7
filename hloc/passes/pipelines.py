"""The pipelines: which passes run, and in which order. Data only: runner.py runs them, a test checks the order.

    run_passes(module, pipeline_for("cpu"), PassContext(target="cpu"))

First the target-independent passes, then those of the target. ORDERING lists the pairs whose order matters, and why.
"""
from __future__ import annotations

from hloc.errors import UsageError
from hloc.passes.algebraic_simplifier import algebraic_simplifier
from hloc.passes.async_to_sync import async_to_sync
from hloc.passes.bitcast_dtypes_expander import bitcast_dtypes_expander
from hloc.passes.call_inliner import call_inliner
from hloc.passes.collectives_simplifier import collectives_simplifier
from hloc.passes.complex_dot_rewriter import complex_dot_rewriter
from hloc.passes.constant_folding import constant_folding
from hloc.passes.convert_mover import convert_mover
from hloc.passes.copy_insertion import copy_insertion
from hloc.passes.cse import cse
from hloc.passes.custom_call_rewriter import custom_call_rewriter
from hloc.passes.dce import dce
from hloc.passes.defuser import defuser
from hloc.passes.dot_strength_reduction import dot_strength_reduction
from hloc.passes.dynamic_padder import dynamic_padder
from hloc.passes.float_normalization import float_normalization
from hloc.passes.fusion import fusion
from hloc.passes.hlo_computation_deduplicator import hlo_computation_deduplicator
from hloc.passes.hlo_memory_scheduler import hlo_memory_scheduler
from hloc.passes.hlo_rematerialization import hlo_rematerialization
from hloc.passes.layout_assignment import layout_assignment
from hloc.passes.lazy_pass import LazyPass
from hloc.passes.optimization_barrier_expander import optimization_barrier_expander
from hloc.passes.reshape_mover import reshape_mover
from hloc.passes.result_caster import result_caster
from hloc.passes.runner import Pass, Repeat, flatten
from hloc.passes.sharding_remover import sharding_remover
from hloc.passes.transpose_folding import transpose_folding
from hloc.passes.tuple_simplifier import tuple_simplifier
from hloc.passes.zero_sized_hlo_elimination import zero_sized_hlo_elimination

# Passes with nothing to do in a module without these ops.
algorithm_assignment = LazyPass("algorithm_assignment", "dot", "convolution", "ragged-dot")
attention_gradient_rewriter = LazyPass("attention_gradient_rewriter", "dot")
batch_norm_expander = LazyPass("batch_norm_expander", "batch-norm-training", "batch-norm-inference", "batch-norm-grad")
convert_folding = LazyPass("convert_folding", "dot")
flatten_call_graph = LazyPass("flatten_call_graph", "conditional")
cholesky_expander = LazyPass("cholesky_expander", "cholesky")
conditional_simplifier = LazyPass("conditional_simplifier", "conditional")
gather_simplifier = LazyPass("gather_simplifier", "gather")
index_narrowing = LazyPass("index_narrowing", "iota", "reduce")
map_inliner = LazyPass("map_inliner", "map")
nccl_rewriter = LazyPass("nccl_rewriter", "all-gather", "all-reduce", "all-to-all", "reduce-scatter", "send")
pad_for_convolutions = LazyPass("pad_for_convolutions", "convolution")
permute_slices_expander = LazyPass("permute_slices_expander", "collective-permute")
ragged_dot_rewriter = LazyPass("ragged_dot_rewriter", "ragged-dot")
rng_bit_generator_expander = LazyPass("rng_bit_generator_expander", "rng-bit-generator")
rng_expander = LazyPass("rng_expander", "rng", "rng-get-and-update-state")
scaled_dot_rewriter = LazyPass("scaled_dot_rewriter", "scaled-dot")
scan_expander = LazyPass("scan_expander", "scan")
scatter_simplifier = LazyPass("scatter_simplifier", "scatter")
simplify_fp_conversions = LazyPass("simplify_fp_conversions", "fusion")
sort_simplifier = LazyPass("sort_simplifier", "sort")
triangular_solve_expander = LazyPass("triangular_solve_expander", "triangular-solve")
while_loop_condition_motion = LazyPass("while_loop_condition_motion", "while")
while_loop_dot_batching = LazyPass("while_loop_dot_batching", "while")
while_loop_dot_merger = LazyPass("while_loop_dot_merger", "while")
while_loop_invariant_code_motion = LazyPass("while_loop_invariant_code_motion", "while")
while_loop_simplifier = LazyPass("while_loop_simplifier", "while")
while_loop_trip_count_annotator = LazyPass("while_loop_trip_count_annotator", "while")
while_loop_unroller = LazyPass("while_loop_unroller", "while")

# One device's program from that of all: before the pipelines, where a module is run on several devices.
sdy_round_trip_import = LazyPass("sdy_round_trip_import")
sharding_propagation = LazyPass("sharding_propagation")
spmd_partitioner = LazyPass("spmd_partitioner")
PARTITIONING: tuple[Pass | Repeat, ...] = (
    defuser,
    async_to_sync,
    sdy_round_trip_import,
    call_inliner,
    zero_sized_hlo_elimination,
    sharding_propagation,
    spmd_partitioner,
)

# Passes on collectives, a part of TARGET_INDEPENDENT.
all_gather_combiner = LazyPass("all_gather_combiner", "all-gather")
all_reduce_combiner = LazyPass("all_reduce_combiner", "all-reduce")
all_reduce_reassociate = LazyPass("all_reduce_reassociate", "all-reduce")
reduce_scatter_combiner = LazyPass("reduce_scatter_combiner", "reduce-scatter")
reduce_scatter_creator = LazyPass("reduce_scatter_creator", "all-reduce")
while_loop_all_reduce_code_motion = LazyPass("while_loop_all_reduce_code_motion", "all-reduce")
COLLECTIVES: tuple[Pass | Repeat, ...] = (
    all_reduce_reassociate,
    while_loop_all_reduce_code_motion,
    reduce_scatter_creator,
    all_reduce_combiner,
    all_gather_combiner,
    reduce_scatter_combiner,
)

# Where a device can send and compute at the same time: behind COLLECTIVES, with the option `pipelined` (pipeline_for).
collective_pipeliner = LazyPass("collective_pipeliner", "while")
windowed_einsum = LazyPass("windowed_einsum", "dot")
PIPELINED: tuple[Pass | Repeat, ...] = (
    collective_pipeliner,
    windowed_einsum,
)

# After the pipelines, for a device that can send and compute at the same time.
async_collective_creator = LazyPass("async_collective_creator")
latency_hiding_scheduler = LazyPass("latency_hiding_scheduler")
OVERLAP: tuple[Pass | Repeat, ...] = (
    async_collective_creator,
    latency_hiding_scheduler,
)

SIMPLIFICATION = Repeat("simplification", (
    zero_sized_hlo_elimination,
    tuple_simplifier,
    algebraic_simplifier,
    gather_simplifier,
    scatter_simplifier,
    sort_simplifier,
    constant_folding,
    conditional_simplifier,
    while_loop_simplifier,
    reshape_mover,
    convert_mover,
    transpose_folding,
    cse,
    dce,
))

TARGET_INDEPENDENT: tuple[Pass | Repeat, ...] = (
    defuser,
    sharding_remover,
    async_to_sync,
    permute_slices_expander,
    custom_call_rewriter,
    float_normalization,
    result_caster,
    collectives_simplifier,
    scan_expander,
    ragged_dot_rewriter,
    scaled_dot_rewriter,
    call_inliner,
    map_inliner,
    dynamic_padder,
    rng_expander,
    rng_bit_generator_expander,
    batch_norm_expander,
    cholesky_expander,
    triangular_solve_expander,
    dot_strength_reduction,
    complex_dot_rewriter,
    hlo_computation_deduplicator,
    SIMPLIFICATION,
    while_loop_unroller,
    while_loop_invariant_code_motion,
    while_loop_dot_batching,
    while_loop_dot_merger,
    index_narrowing,
    optimization_barrier_expander,
    SIMPLIFICATION,
    *COLLECTIVES,
    while_loop_trip_count_annotator,
)

CPU: tuple[Pass | Repeat, ...] = (
    layout_assignment,
    bitcast_dtypes_expander,
    SIMPLIFICATION,
    fusion,
    hlo_memory_scheduler,
    hlo_rematerialization,
    flatten_call_graph,
    copy_insertion,
)

CUDA: tuple[Pass | Repeat, ...] = (
    nccl_rewriter,
    map_inliner,                        # of reducers
    layout_assignment,
    bitcast_dtypes_expander,
    convert_folding,
    while_loop_condition_motion,
    SIMPLIFICATION,
    attention_gradient_rewriter,        # last, so that the result is read where a kernel stores it
    pad_for_convolutions,
    algorithm_assignment,
    fusion,
    simplify_fp_conversions,
    hlo_memory_scheduler,
    hlo_rematerialization,
    flatten_call_graph,
    copy_insertion,
)

# (a, b, why): the first run of a comes before the first run of b.
ORDERING: tuple[tuple[Pass, Pass, str], ...] = (
    (call_inliner, algebraic_simplifier, "rules see through a call only after it is inlined"),
    (defuser, custom_call_rewriter, "library calls and expanded ops also occur inside fusions"),
    (async_to_sync, float_normalization, "asynchronous copies become copies"),
    (async_to_sync, permute_slices_expander, "permutes that are started and done become plain ones"),
    (permute_slices_expander, collectives_simplifier, "plain permutes are simplified"),
    (float_normalization, algebraic_simplifier, "a copy that rounds is not its operand"),
    (result_caster, ragged_dot_rewriter, "rows in no group are zero, in a type that has a zero"),
    (result_caster, algebraic_simplifier, "rules for matmuls read them in the type of the sums"),
    (defuser, scaled_dot_rewriter, "library calls and expanded ops also occur inside fusions"),
    (defuser, algebraic_simplifier, "rules see through a fusion only after it is inlined"),
    (map_inliner, algebraic_simplifier, "rules match elementwise operations, not maps"),
    (map_inliner, hlo_computation_deduplicator, "a map's function is unused after the map is inlined"),
    (tuple_simplifier, while_loop_simplifier, "a loop's state must be a tuple to be simplified"),
    (tuple_simplifier, algebraic_simplifier, "rules look at operands; a get-tuple-element of a tuple hides them"),
    (algebraic_simplifier, constant_folding, "the simplifier brings broadcast constants into one form"),
    (constant_folding, conditional_simplifier, "a predicate is known once it is folded"),
    (constant_folding, while_loop_simplifier, "a trip count is known once start, step and limit are folded"),
    (reshape_mover, transpose_folding, "transposes that moved below elementwise operations reach the dot"),
    (convert_mover, transpose_folding, "transposes that meet through a convert reach the dot"),
    (cse, dce, "merged instructions are removed"),
    (algebraic_simplifier, optimization_barrier_expander, "barriers must still restrict simplification"),
    (while_loop_simplifier, while_loop_invariant_code_motion, "the simplifier handles elements that never change"),
    (while_loop_invariant_code_motion, while_loop_dot_batching, "operands computed from weights are loop-invariant"),
    (while_loop_invariant_code_motion, while_loop_dot_merger, "operands computed from weights are loop-invariant"),
    (while_loop_dot_batching, while_loop_dot_merger, "one matmul for all iterations is larger than merged ones"),
    (while_loop_simplifier, while_loop_unroller, "the limit is known after constants moved into the condition"),
    (call_inliner, while_loop_unroller, "instructions of called computations count after inlining"),
    (scan_expander, call_inliner, "the step of a scan is called"),
    (async_to_sync, call_inliner, "async-start becomes a call"),
    (dynamic_padder, algebraic_simplifier, "rules require static sizes"),
    (call_inliner, rng_expander, "draws of the entry itself start from a constant state"),
    (rng_expander, rng_bit_generator_expander, "states become constants first"),
    (dot_strength_reduction, complex_dot_rewriter, "the values that are summed are not a matmul"),
    (triangular_solve_expander, dot_strength_reduction, "it makes dots, also of vectors"),
    (cholesky_expander, complex_dot_rewriter, "it makes dots, also of complex matrices"),
    (triangular_solve_expander, complex_dot_rewriter, "it makes dots, also of complex matrices"),
    (all_reduce_combiner, nccl_rewriter, "it makes collectives that are not combined"),
    (nccl_rewriter, layout_assignment, "transposes beside collectives become bitcasts where they can"),
    (nccl_rewriter, fusion, "what it makes beside collectives is fused with the rest"),
    (layout_assignment, bitcast_dtypes_expander, "a bitcast to another width is free between row-major arrays"),
    (layout_assignment, fusion, "a kernel reads row-major arrays; a bitcast is free only between them"),
    (layout_assignment, pad_for_convolutions, "it looks at which channels are contiguous"),
    (algebraic_simplifier, pad_for_convolutions, "a rule might take the zeros away"),
    (pad_for_convolutions, fusion, "a kernel may compute an image and pad it"),
    (convert_folding, algorithm_assignment, "a dot of converted bf16 multiplies bf16"),
    (complex_dot_rewriter, algorithm_assignment, "dots of complex matrices are dots of f32 then"),
    (fusion, simplify_fp_conversions, "values stay f32 within a fusion"),
    (fusion, hlo_memory_scheduler, "the scheduler orders kernels"),
    (hlo_memory_scheduler, hlo_rematerialization, "live ranges depend on the order"),
    (hlo_rematerialization, copy_insertion, "recomputed arrays are read, and overwritten, at other positions"),
    (flatten_call_graph, copy_insertion, "whether a branch may overwrite an array depends on one conditional"),
    (hlo_memory_scheduler, copy_insertion, "whether an array is still needed depends on the order"),
    (while_loop_unroller, while_loop_all_reduce_code_motion, "all-reduces of unrolled loops are combined, not moved"),
    (all_reduce_reassociate, all_reduce_combiner, "all-reduces that are one are not to be combined"),
    (reduce_scatter_creator, all_reduce_combiner, "an all-reduce of several arrays is no reduce-scatter"),
    (reduce_scatter_creator, reduce_scatter_combiner, "it makes reduce-scatters"),
    (while_loop_all_reduce_code_motion, all_reduce_combiner, "what left a loop is combined with others"),
    (algebraic_simplifier, index_narrowing, "the range of an index is known after simplification"),
    (while_loop_trip_count_annotator, while_loop_condition_motion, "counted loops need no condition"),
    (while_loop_simplifier, while_loop_trip_count_annotator,
     "the limit is known after constants moved into the condition"),
)

PARTITIONING_ORDERING: tuple[tuple[Pass, Pass, str], ...] = (
    (sdy_round_trip_import, call_inliner, "calls of manual computations are inlined, too, once their shapes are said"),
    (call_inliner, sharding_propagation, "shardings go through what a call calls"),
    (zero_sized_hlo_elimination, spmd_partitioner, "parts of windows that fit nowhere may fit somewhere"),
    (sharding_propagation, spmd_partitioner, "each array needs one"),
)

ALL_PASSES: dict[str, Pass] = {one.__name__: one for one in (
    *flatten(TARGET_INDEPENDENT), *flatten(CPU), *flatten(CUDA), *flatten(PARTITIONING), *flatten(OVERLAP),
    *flatten(PIPELINED),
)}

PIPELINES: dict[str, tuple[Pass | Repeat, ...]] = {"cpu": TARGET_INDEPENDENT + CPU, "cuda": TARGET_INDEPENDENT + CUDA}


def pipeline_for(target: str, pipelined: bool = False) -> tuple[Pass | Repeat, ...]:
    """The whole pipeline of a target ("cpu", "cuda"), with PIPELINED if it is to be. UsageError for an unknown one."""
    if target not in PIPELINES:
        raise UsageError(f"no pipeline for target {target!r}", hint=f"targets: {', '.join(PIPELINES)}")
    passes = PIPELINES[target]
    if not pipelined:
        return passes
    place = passes.index(while_loop_trip_count_annotator)         # behind COLLECTIVES; trip counts change
    return (*passes[:place], *PIPELINED, *passes[place:])
