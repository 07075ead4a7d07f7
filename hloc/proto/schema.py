"""The messages of XLA's binary form that hloc reads and writes, as data: numbers, names and types of their fields.

Source: xla/service/hlo.proto and xla/xla_data.proto. A row is `Message: number field type; ...`. A type is followed
by * for a repeated field, by [] for repeated numbers that are kept as a NumPy array, by ? for a field that is written
even if it is zero. `unread` fields are not needed by hloc and are skipped. A row of ENUMS is `Enum: number NAME; ...`;
values are represented by their names. Example:

    MESSAGES["TileProto"].by_name["dimensions"]         Field(number=1, name="dimensions", kind="int64", ...)
"""
from __future__ import annotations

from typing import NamedTuple

import numpy as np

_MESSAGES = """
# Modules
HloSnapshot: 1 hlo HloProto; 2 arguments LiteralProto*; 3 result unread; 4 execution_platform unread
HloProto: 1 hlo_module HloModuleProto; 3 buffer_assignment unread
HloModuleProto: 1 name string; 2 entry_computation_name string; 3 computations HloComputationProto*;
    4 host_program_shape ProgramShapeProto; 5 id int64; 6 entry_computation_id int64; 7 schedule HloScheduleProto;
    8 input_output_alias HloInputOutputAliasProto; 10 cross_program_prefetches unread; 11 is_dynamic unread;
    12 spmd_output_sharding unread; 13 profile_info unread; 14 spmd_parameters_shardings unread;
    15 device_assignment DeviceAssignmentProto; 16 use_auto_spmd_partitioning unread;
    17 stack_frame_index StackFrameIndexProto; 18 buffer_donor HloBufferDonorProto;
    19 frontend_attributes FrontendAttributes; 20 original_value_recovery_table unread; 21 device_type unread;
    22 payloads bytes*; 23 pjrt_id unread
HloComputationProto: 1 name string; 2 instructions HloInstructionProto*; 4 program_shape ProgramShapeProto;
    5 id int64; 6 root_id int64; 7 is_fusion_computation bool; 8 execution_thread string
HloInstructionProto: 1 name string; 2 opcode string; 3 shape ShapeProto; 7 metadata OpMetadata;
    8 literal LiteralProto; 9 parameter_number int64; 11 fusion_kind string; 13 tuple_index int64;
    14 dimensions int64*; 15 window Window; 16 convolution_dimension_numbers ConvolutionDimensionNumbers;
    17 slice_dimensions SliceDimensions*; 18 exponent_bits int32; 19 mantissa_bits int32;
    20 dynamic_slice_sizes int64*; 21 padding_config PaddingConfig; 22 outfeed_config bytes;
    23 distribution RandomDistribution; 24 epsilon float; 25 feature_index int64; 26 channel_id int64;
    27 infeed_config bytes; 28 custom_call_target string; 29 outfeed_shape ShapeProto;
    30 dot_dimension_numbers DotDimensionNumbers; 31 fft_type FftType; 32 fft_length int64*;
    33 gather_dimension_numbers GatherDimensionNumbers; 34 gather_slice_sizes int64*; 35 id int64;
    36 operand_ids int64*; 37 control_predecessor_ids int64*; 38 called_computation_ids int64*;
    40 sharding OpSharding; 43 backend_config bytes; 45 all_reduce_id unread; 47 is_host_transfer bool;
    48 scatter_dimension_numbers ScatterDimensionNumbers; 49 replica_groups ReplicaGroup*;
    50 feature_group_count int64; 51 precision_config PrecisionConfig; 52 source_target_pairs SourceTarget*;
    54 domain_entry_sharding OpSharding; 55 domain_exit_sharding OpSharding; 56 constrain_layout bool;
    57 operand_shapes_with_layout ShapeProto*; 58 batch_group_count int64;
    59 triangular_solve_options TriangularSolveOptions; 60 is_stable bool;
    61 parameter_replication ParameterReplication; 62 cholesky_options CholeskyOptions;
    63 comparison_direction string; 65 custom_call_has_side_effect bool; 66 delta int64; 67 indices_are_sorted bool;
    68 frontend_attributes FrontendAttributes; 69 unique_indices bool; 70 rng_algorithm RandomAlgorithm;
    71 use_global_device_ids bool; 72 comparison_type string; 73 is_cross_program_prefetch unread;
    74 output_operand_aliasing OutputOperandAliasing*; 75 padding_type PaddingType;
    76 custom_call_schedule CustomCallSchedule; 77 custom_call_api_version CustomCallApiVersion;
    79 async_execution_thread string; 80 cross_program_prefetch_index int32?; 81 k int64;
    82 statistics_viz StatisticsViz; 85 largest bool; 87 collective_device_list CollectiveDeviceListProto;
    88 original_value OriginalValueProto; 89 is_composite bool;
    90 ragged_dot_dimension_numbers RaggedDotDimensionNumbers; 91 result_accuracy ResultAccuracy;
    92 iota_collective_device_list IotaReplicaGroupListProto;
    93 mesh_axes_replica_group_list MeshAxesReplicaGroupListProto; 94 is_reverse bool; 95 num_carries int64;
    96 is_associative TriState; 97 conv_kind ConvolutionKind; 98 sparsity_config SparsityConfig;
    99 backend_config_payload Payload; 100 has_dynamic_root bool; 101 block_scaling_config BlockScalingConfig;
    102 comparison_order string; 103 shuffle_mode unread
ProgramShapeProto: 1 parameters ShapeProto*; 2 result ShapeProto; 3 parameter_names string*
HloScheduleProto: 1 sequences SequencesEntry*
SequencesEntry: 1 key int64; 2 value InstructionSequence
InstructionSequence: 1 instruction_ids int64*
HloInputOutputAliasProto: 1 entries AliasEntryProto*
AliasEntryProto: 1 output_shape_index int64*; 2 parameter_number int64; 3 parameter_shape_index int64*;
    4 kind AliasKind
HloBufferDonorProto: 1 entries BufferDonorEntryProto*
BufferDonorEntryProto: 1 parameter_number int64; 2 parameter_shape_index int64*
DeviceAssignmentProto: 1 replica_count int32; 2 computation_count int32; 3 computation_devices ComputationDevice*
ComputationDevice: 1 replica_device_ids int64*
StackFrameIndexProto: 1 file_names string*; 2 function_names string*; 3 file_locations FileLocation*;
    4 stack_frames StackFrame*
FileLocation: 1 file_name_id int32; 2 function_name_id int32; 3 line int32; 4 column int32; 5 end_line int32;
    6 end_column int32
StackFrame: 1 file_location_id int32; 2 parent_frame_id int32

# Shapes and literals
ShapeProto: 2 element_type PrimitiveType; 3 dimensions int64*; 4 tuple_shapes ShapeProto*; 5 layout LayoutProto;
    6 is_dynamic_dimension bool*
LayoutProto: 1 minor_to_major int64*; 6 tiles TileProto*; 7 element_size_in_bits int64; 8 memory_space int64;
    9 dim_level_types DimLevelType*; 10 physical_shape ShapeProto; 11 index_primitive_type PrimitiveType;
    12 pointer_primitive_type PrimitiveType; 13 dim_unique bool*; 14 dim_ordered bool*;
    15 dynamic_shape_metadata_prefix_bytes int64; 16 tail_padding_alignment_in_elements int64;
    17 split_configs SplitConfigProto*
TileProto: 1 dimensions int64*
SplitConfigProto: 1 dimension int64; 2 split_indices int64*
LiteralProto: 1 shape ShapeProto; 2 preds bool[]; 3 u8s bytes; 4 s32s int32[]; 5 s64s int64[]; 6 u32s uint32[];
    7 u64s uint64[]; 8 f32s float[]; 9 f64s double[]; 10 tuple_literals LiteralProto*; 11 f16s bytes;
    12 c64s float[]; 13 bf16s bytes; 14 sparse_indices unread; 15 s8s bytes; 16 u16s bytes; 17 s16s bytes;
    18 c128s double[]; 19 f8e5m2s bytes; 20 f8e4m3fns bytes; 21 s4s bytes; 22 u4s bytes; 23 f8e4m3b11fnuzs bytes;
    24 f8e5m2fnuzs bytes; 25 f8e4m3fnuzs bytes; 26 s2s bytes; 27 u2s bytes; 28 f8e4m3s bytes; 29 f8e3m4s bytes;
    30 s1s bytes; 31 u1s bytes; 32 f4e2m1fns bytes; 33 f8e8m0fnus bytes; 34 dynamic_sizes int32*;
    35 f6e3m2fns bytes; 36 f6e2m3fns bytes

# What instructions do
Window: 1 dimensions WindowDimension*
WindowDimension: 1 size int64; 2 stride int64; 3 padding_low int64; 4 padding_high int64; 5 window_dilation int64;
    6 base_dilation int64; 7 window_reversal bool
ConvolutionDimensionNumbers: 3 kernel_input_feature_dimension int64; 4 kernel_output_feature_dimension int64;
    6 kernel_spatial_dimensions int64*; 7 input_batch_dimension int64; 8 input_feature_dimension int64;
    9 output_batch_dimension int64; 10 output_feature_dimension int64; 11 input_spatial_dimensions int64*;
    12 output_spatial_dimensions int64*
SliceDimensions: 1 start int64; 2 limit int64; 3 stride int64
PaddingConfig: 1 dimensions PaddingConfigDimension*
PaddingConfigDimension: 1 edge_padding_low int64; 2 edge_padding_high int64; 3 interior_padding int64
DotDimensionNumbers: 1 lhs_contracting_dimensions int64*; 2 rhs_contracting_dimensions int64*;
    3 lhs_batch_dimensions int64*; 4 rhs_batch_dimensions int64*
RaggedDotDimensionNumbers: 1 dot_dimension_numbers DotDimensionNumbers; 2 lhs_ragged_dimensions int64*;
    3 rhs_group_dimensions int64*
GatherDimensionNumbers: 1 offset_dims int64*; 2 collapsed_slice_dims int64*; 3 start_index_map int64*;
    4 index_vector_dim int64; 5 operand_batching_dims int64*; 6 start_indices_batching_dims int64*
ScatterDimensionNumbers: 1 update_window_dims int64*; 2 inserted_window_dims int64*;
    3 scatter_dims_to_operand_dims int64*; 4 index_vector_dim int64; 5 input_batching_dims int64*;
    6 scatter_indices_batching_dims int64*
PrecisionConfig: 1 operand_precision Precision*; 2 algorithm Algorithm
SparsityConfig: 1 lhs TensorSparsityConfig; 2 rhs TensorSparsityConfig
BlockScalingConfig: 1 lhs TensorBlockScalingConfig; 2 rhs TensorBlockScalingConfig
TensorBlockScalingConfig: 1 scale_idx int32; 2 zero_idx int32?; 3 strides int64*; 4 steps int64*
TensorSparsityConfig: 1 num_non_zero int64; 2 block_size int64; 3 dimension int64; 4 stride int64
TriangularSolveOptions: 1 left_side bool; 2 lower bool; 3 unit_diagonal bool; 4 transpose_a Transpose
CholeskyOptions: 1 lower bool
ResultAccuracy: 1 mode AccuracyMode?; 2 tolerance Tolerance
Tolerance: 1 atol double; 2 rtol double; 3 ulps int64
OutputOperandAliasing: 1 output_shape_index int64*; 2 operand_index int64; 3 operand_shape_index int64*

# Devices
ReplicaGroup: 1 replica_ids int64*
CollectiveDeviceListProto: 1 replica_groups ReplicaGroup*
IotaReplicaGroupListProto: 1 num_replica_groups int64; 2 num_devices_per_group int64; 3 iota_reshape_dims int64*;
    4 iota_transpose_perm int32*
MeshAxesReplicaGroupListProto: 1 mesh MeshProto; 2 axes AxisRefProto*
SourceTarget: 1 source int64; 2 target int64
OpSharding: 1 type ShardingType; 2 tile_shape unread; 3 tile_assignment_dimensions int64*;
    4 tile_assignment_devices int64*; 5 tuple_shardings OpSharding*; 6 replicate_on_last_tile_dim bool;
    7 metadata OpMetadata*; 8 last_tile_dims ShardingType*; 9 iota_reshape_dims int64*;
    10 iota_transpose_perm int32*; 11 is_shard_group bool; 12 shard_group_id int64;
    13 shard_group_type ShardGroupType; 14 named_sharding NamedShardingProto
NamedShardingProto: 2 mesh MeshProto; 3 dim_shardings DimensionSharding*; 4 replicated_axes AxisRefProto*;
    5 unreduced_axes AxisRefProto*; 6 metadata OpMetadata*; 7 manual_axes AxisRefProto*
DimensionSharding: 1 axes AxisRefProto*; 2 is_closed bool
AxisRefProto: 1 mesh_axis_index int64; 2 sub_axis_info SubAxis
SubAxis: 1 pre_size int64; 2 size int64
MeshProto: 1 axes MeshAxis*; 2 device_ids int64*; 3 iota_transform IotaTransform
MeshAxis: 1 name string; 2 size int64
IotaTransform: 1 reshape_dims int64*; 2 transpose_perm int64*
ParameterReplication: 1 replicated_at_leaf_buffers bool*

# Notes
OpMetadata: 1 op_type string; 2 op_name string; 3 source_file string; 4 source_line int32;
    5 profile_type ProfileType*; 8 size_of_generated_code_in_bytes unread;
    9 size_of_memory_working_set_in_bytes unread; 10 profile_info unread; 12 deduplicated_name string;
    15 stack_frame_id int32; 16 scheduling_name string; 17 source_end_line int32; 18 source_column int32;
    19 source_end_column int32; 20 metadata_payload unread
Payload: 1 value bytes; 2 id int64?
FrontendAttributes: 1 map MapEntry*
MapEntry: 1 key string; 2 value string
StatisticsViz: 1 stat_index_to_visualize int64; 2 statistics Statistic*
Statistic: 1 stat_name string; 2 stat_val double
OriginalValueProto: 1 elements OriginalValueElementProto*; 2 is_synthetic_call bool
OriginalValueElementProto: 1 shape_index int64*; 2 original_array OriginalArrayProto
OriginalArrayProto: 1 instruction_name string; 2 shape_index int64*
"""

_ENUMS = """
PrimitiveType: 0 PRIMITIVE_TYPE_INVALID; 1 PRED; 30 S1; 26 S2; 21 S4; 2 S8; 3 S16; 4 S32; 5 S64; 31 U1; 27 U2;
    22 U4; 6 U8; 7 U16; 8 U32; 9 U64; 10 F16; 11 F32; 16 BF16; 12 F64; 19 F8E5M2; 28 F8E4M3; 20 F8E4M3FN;
    23 F8E4M3B11FNUZ; 29 F8E3M4; 24 F8E5M2FNUZ; 25 F8E4M3FNUZ; 32 F4E2M1FN; 33 F8E8M0FNU; 35 F6E3M2FN; 36 F6E2M3FN;
    15 C64; 18 C128; 13 TUPLE; 14 OPAQUE_TYPE; 17 TOKEN; 34 BUFFER
DimLevelType: 0 DIM_DENSE; 1 DIM_COMPRESSED; 2 DIM_SINGLETON; 3 DIM_LOOSE_COMPRESSED
RandomDistribution: 0 RNG_INVALID; 1 RNG_UNIFORM; 2 RNG_NORMAL
RandomAlgorithm: 0 RNG_DEFAULT; 1 RNG_THREE_FRY; 2 RNG_PHILOX
FftType: 0 FFT; 1 IFFT; 2 RFFT; 3 IRFFT
PaddingType: 0 PADDING_INVALID; 1 PADDING_VALID; 2 PADDING_SAME
Transpose: 0 TRANSPOSE_INVALID; 1 NO_TRANSPOSE; 2 TRANSPOSE; 3 ADJOINT
ConvolutionKind: 0 CONVOLUTION_KIND_UNSET; 1 CONVOLUTION_KIND_FPROP; 2 CONVOLUTION_KIND_DGRAD;
    3 CONVOLUTION_KIND_WGRAD
Precision: 0 DEFAULT; 1 HIGH; 2 HIGHEST
Algorithm: 0 ALG_UNSET; 1 ALG_DOT_ANY_F8_ANY_F8_F32; 2 ALG_DOT_ANY_F8_ANY_F8_F32_FAST_ACCUM; 3 ALG_DOT_F16_F16_F16;
    4 ALG_DOT_F16_F16_F32; 5 ALG_DOT_BF16_BF16_BF16; 6 ALG_DOT_BF16_BF16_F32; 7 ALG_DOT_BF16_BF16_F32_X3;
    8 ALG_DOT_BF16_BF16_F32_X6; 9 ALG_DOT_TF32_TF32_F32; 10 ALG_DOT_TF32_TF32_F32_X3; 11 ALG_DOT_F32_F32_F32;
    12 ALG_DOT_F64_F64_F64; 13 ALG_DOT_BF16_BF16_F32_X9
TriState: 0 TRI_STATE_UNSPECIFIED; 1 TRI_STATE_TRUE; 2 TRI_STATE_FALSE
CustomCallSchedule: 0 SCHEDULE_NONE; 1 SCHEDULE_LATEST; 2 SCHEDULE_EARLIEST
CustomCallApiVersion: 0 API_VERSION_UNSPECIFIED; 1 API_VERSION_ORIGINAL; 2 API_VERSION_STATUS_RETURNING;
    3 API_VERSION_STATUS_RETURNING_UNIFIED; 4 API_VERSION_TYPED_FFI
ShardGroupType: 0 AS; 1 LIKE
ProfileType: 0 INVALID; 1 WINDOW; 2 FLAG; 3 INTEGER
ShardingType: 0 REPLICATED; 1 MAXIMAL; 2 TUPLE; 3 OTHER; 4 MANUAL; 5 UNKNOWN; 6 UNREDUCED
AccuracyMode: 0 DEFAULT; 1 HIGHEST
AliasKind: 0 UNDEFINED_ALIAS; 1 MAY_ALIAS; 2 MUST_ALIAS
"""

VARINTS = frozenset(["int32", "int64", "uint32", "uint64", "bool", "enum"])
ARRAY_TYPES = {"bool": np.dtype(np.bool_), "int32": np.dtype(np.int32), "int64": np.dtype(np.int64),
               "uint32": np.dtype(np.uint32), "uint64": np.dtype(np.uint64), "float": np.dtype("<f4"),
               "double": np.dtype("<f8")}
_DEFAULTS = {"string": "", "bytes": b"", "bool": False, "float": 0.0, "double": 0.0, "message": None, "unread": None}


class Enum(NamedTuple):
    """Names by number and numbers by name."""

    name: str
    names: dict[int, str]
    numbers: dict[str, int]


class Field(NamedTuple):
    """kind: a scalar type, enum, message or unread; `type` is the name of the enum or message."""

    number: int
    name: str
    kind: str
    type: str
    repeated: bool
    is_array: bool
    explicit: bool
    default: object


class Message(NamedTuple):
    """Fields by name and by number."""

    name: str
    by_name: dict[str, Field]
    by_number: dict[int, Field]


def _rows(text: str) -> list[tuple[str, list[list[str]]]]:
    """(head, entries split into words) of every row; indented lines continue a row."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    rows = " ".join(line if line[0] == " " else "\n" + line for line in lines).split("\n")
    heads = [row.partition(":") for row in rows if row.strip()]
    return [(head, [entry.split() for entry in rest.split(";")]) for head, _, rest in heads]


def _enum(name: str, entries: list[list[str]]) -> Enum:
    return Enum(name, {int(n): value for n, value in entries}, {value: int(n) for n, value in entries})


ENUMS: dict[str, Enum] = {name: _enum(name, entries) for name, entries in _rows(_ENUMS)}


def _field(number: str, name: str, type_text: str) -> Field:
    type_name = type_text.rstrip("*[]?")
    is_array, explicit = type_text.endswith("[]"), type_text.endswith("?")
    repeated = is_array or type_text.endswith("*")
    scalar = type_name in VARINTS or type_name in _DEFAULTS
    kind = type_name if scalar else "enum" if type_name in ENUMS else "message"
    default = ENUMS[type_name].names[0] if kind == "enum" else _DEFAULTS.get(kind, 0)
    return Field(int(number), name, kind, type_name, repeated, is_array, explicit, () if repeated else default)


def _message(name: str, entries: list[list[str]]) -> Message:
    fields = [_field(*entry) for entry in entries]
    return Message(name, {f.name: f for f in fields}, {f.number: f for f in fields})


MESSAGES: dict[str, Message] = {name: _message(name, entries) for name, entries in _rows(_MESSAGES)}
