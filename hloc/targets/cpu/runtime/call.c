/* call.c: NumPy arrays -> the base addresses of a run, without Python's C API.
 *
 * In: two Python tuples of arrays (the arguments, not yet checked, and the result arrays) and what the arguments must be.
 * Out: hloc_call runs the program and returns what hloc_execute does, or HLOC_NOT_AS_EXPECTED, having run nothing,
 * where an argument is anything but a plain contiguous array of the very type and shape: Python then says what is wrong
 * or converts it. The layout of the objects is that of CPython and NumPy's public struct PyArrayObject_fields;
 * hloc/targets/cpu/calls.py tries hloc_match on arrays that it knows before it relies on this.
 *
 * facts: header (bytes of an object before its own fields), items (bytes of a tuple before its items), the address of
 * numpy.ndarray, the number of arguments and of results, then for each argument: address of its dtype, rank, dimensions.
 */
#include "driver.h"

int hloc_execute(void *const *bases, hloc_host_function host);

enum { HLOC_NOT_AS_EXPECTED = -1, HLOC_C_CONTIGUOUS = 0x1, HLOC_ALIGNED = 0x100 };

typedef struct {
  char *data;
  int rank;
  const intptr_t *dimensions, *strides;
  const void *base, *type;
  int flags;
} hloc_array;

/* bases[0 ...] = addresses of the arguments, then of the results. Returns 0 or HLOC_NOT_AS_EXPECTED. */
__attribute__((visibility("default")))
int hloc_match(void **bases, const char *arguments, const char *results, const intptr_t *facts) {
  const intptr_t header = facts[0], items = facts[1], array_type = facts[2], count = facts[3], made = facts[4];
  const char *const *given = (const char *const *)(arguments + items);
  const intptr_t *want = facts + 5;
  const int flags = HLOC_C_CONTIGUOUS | HLOC_ALIGNED;
  if (*(const intptr_t *)(arguments + items - sizeof(intptr_t)) != count) return HLOC_NOT_AS_EXPECTED;
  for (intptr_t i = 0; i < count; i++) {
    if (*(const intptr_t *)(given[i] + header - sizeof(intptr_t)) != array_type) return HLOC_NOT_AS_EXPECTED;
    const hloc_array *array = (const hloc_array *)(given[i] + header);
    if ((intptr_t)array->type != want[0] || array->rank != want[1] || (array->flags & flags) != flags)
      return HLOC_NOT_AS_EXPECTED;
    for (int d = 0; d < array->rank; d++)
      if (array->dimensions[d] != want[2 + d]) return HLOC_NOT_AS_EXPECTED;
    bases[i] = array->data;
    want += 2 + want[1];
  }
  given = (const char *const *)(results + items);
  for (intptr_t i = 0; i < made; i++) bases[count + i] = ((const hloc_array *)(given[i] + header))->data;
  return 0;
}

__attribute__((visibility("default")))
int hloc_call(void **bases, const char *arguments, const char *results, const intptr_t *facts, hloc_host_function host) {
  int error = hloc_match(bases + 1, arguments, results, facts);
  return error ? error : hloc_execute(bases, host);
}
