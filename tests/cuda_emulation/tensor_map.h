/* tensor_map.h: what the emulated drivers (libcuda.cpp, driver.py) write into a tensor map, and engines.cpp reads. The real
 * ones' bits are the driver's own. */
#pragma once
#include <cstdint>

struct EmulatedMap {
  uint64_t magic, address;
  uint32_t width, swizzle;
  uint64_t sizes[4], strides[3];
  uint32_t box[4], steps[4], unused[4];
};
static_assert(sizeof(EmulatedMap) == 128, "a tensor map's size");
constexpr uint64_t EMULATED_MAP = 0x70616d726f736e74;
