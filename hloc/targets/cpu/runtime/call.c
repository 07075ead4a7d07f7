/* call.c: NumPy arrays -> the base addresses of a run, without Python's headers.
 *
 * In: Python tuples of arrays (the arguments, not yet checked, and the result arrays) and what the arguments must be.
 * Out: hloc_call runs the program and returns what hloc_execute does, or HLOC_NOT_AS_EXPECTED, having run nothing,
 * where an argument is anything but a plain contiguous array of the very type and shape: Python then says what is wrong
 * or converts it. The layout of the objects is that of CPython and NumPy's public struct PyArrayObject_fields;
 * hloc/targets/cpu/execution/calls.py tries hloc_match on arrays that it knows before it relies on this.
 *
 * hloc_quick is a function of Python's own kind (METH_O), a tuple of arguments in, a tuple of results out: it costs
 * 0.1 us where a call by ctypes costs 0.5. It takes the first tuple of result arrays of earlier calls that is idle:
 * nobody holds it but the list that keeps it, and nobody but the tuple holds its arrays or has changed one. Where none
 * is, where an argument is not as expected, where another thread runs the program or where hloc_execute fails (its code
 * is then below HLOC_FAILED), it returns what Python's `otherwise(arguments, code)` does. What it calls of Python is of
 * the stable ABI, by address; it holds Python's lock but while the program runs, which has a lock of its own.
 *
 * facts: header (bytes of an object before its own fields), items (bytes of a tuple before its items), the address of
 * numpy.ndarray, the number of arguments and of results, then for each argument, and after them for each result:
 * address of its dtype, rank, dimensions.
 */
#include <pthread.h>
#include "driver.h"

int hloc_execute(void *const *bases, hloc_host_function host);

enum { HLOC_NOT_AS_EXPECTED = -1, HLOC_NOT_IDLE = -2, HLOC_FAILED = -16, HLOC_KEPT = 2 };
enum { HLOC_HEADER = 2 * sizeof(void *) };      /* of an object; calls.py looks whether that is so */
enum { HLOC_C_CONTIGUOUS = 0x1, HLOC_ALIGNED = 0x100, HLOC_WRITEABLE = 0x400 };

typedef struct {
  char *data;
  int rank;
  const intptr_t *dimensions, *strides;
  const void *base, *type;
  int flags;
  const void *weak_references;
} hloc_array;

/* Whether the array is plain, of the type and shape that `want` says, and has these flags. */
static int hloc_is_as_expected(const char *object, const intptr_t *facts, const intptr_t *want, int flags) {
  const intptr_t header = facts[0], array_type = facts[2];
  if (*(const intptr_t *)(object + header - sizeof(intptr_t)) != array_type) return 0;
  const hloc_array *array = (const hloc_array *)(object + header);
  if ((intptr_t)array->type != want[0] || array->rank != want[1] || (array->flags & flags) != flags) return 0;
  for (int d = 0; d < array->rank; d++)
    if (array->dimensions[d] != want[2 + d]) return 0;
  return 1;
}

/* bases[0 ...] = addresses of the arguments, then of the results. Returns 0 or HLOC_NOT_AS_EXPECTED. */
__attribute__((visibility("default")))
int hloc_match(void **bases, const char *arguments, const char *results, const intptr_t *facts) {
  const intptr_t header = facts[0], items = facts[1], count = facts[3], made = facts[4];
  const char *const *given = (const char *const *)(arguments + items);
  const intptr_t *want = facts + 5;
  if (*(const intptr_t *)(arguments + items - sizeof(intptr_t)) != count) return HLOC_NOT_AS_EXPECTED;
  for (intptr_t i = 0; i < count; i++, want += 2 + want[1]) {
    if (!hloc_is_as_expected(given[i], facts, want, HLOC_C_CONTIGUOUS | HLOC_ALIGNED)) return HLOC_NOT_AS_EXPECTED;
    bases[i] = ((const hloc_array *)(given[i] + header))->data;
  }
  given = (const char *const *)(results + items);
  for (intptr_t i = 0; i < made; i++) bases[count + i] = ((const hloc_array *)(given[i] + header))->data;
  return 0;
}

/* Whether one place alone holds the object: the count is 32 bits at its start. */
static int hloc_is_held_once(const char *object) { return *(const uint32_t *)object == 1; }

/* Whether nobody else holds the results, or any of them, and nobody has changed them. */
__attribute__((visibility("default")))
int hloc_are_idle(const char *results, const intptr_t *facts) {
  const intptr_t header = facts[0], items = facts[1];
  const char *const *given = (const char *const *)(results + items);
  const intptr_t *want = facts + 5;
  if (!hloc_is_held_once(results)) return 0;
  for (intptr_t i = 0; i < facts[3]; i++) want += 2 + want[1];
  for (intptr_t i = 0; i < facts[4]; i++, want += 2 + want[1]) {
    const int flags = HLOC_C_CONTIGUOUS | HLOC_ALIGNED | HLOC_WRITEABLE;
    if (!hloc_is_held_once(given[i]) || ((const hloc_array *)(given[i] + header))->weak_references ||
        !hloc_is_as_expected(given[i], facts, want, flags))
      return 0;
  }
  return 1;
}

/* What calls of one program have in common: hloc/targets/cpu/execution/calls.py makes it. */
typedef struct {
  union { pthread_mutex_t mutex; char room[64]; } lock;         /* who holds it may write the bases and the arena */
  void **bases;
  const intptr_t *facts;
  hloc_host_function host;
  void *(*save_thread)(void);             /* PyEval_SaveThread, and so on */
  void (*restore_thread)(void *);
  void (*take_reference)(void *), (*drop_reference)(void *);
  void *(*integer)(long);
  void *(*call)(void *, ...);
  void *otherwise;
  intptr_t count;
  char *kept[HLOC_KEPT];
} hloc_caller;

_Static_assert(sizeof(((hloc_caller *)0)->lock) == 64, "calls.py has 64 bytes for the lock");

__attribute__((visibility("default")))
void hloc_make_lock(hloc_caller *caller) { pthread_mutex_init(&caller->lock.mutex, NULL); }

/* Run on bases of one's own, once no other thread does. */
__attribute__((visibility("default")))
int hloc_run_alone(hloc_caller *caller, void *const *bases) {
  pthread_mutex_lock(&caller->lock.mutex);
  int error = hloc_execute(bases, caller->host);
  pthread_mutex_unlock(&caller->lock.mutex);
  return error;
}

__attribute__((visibility("default")))
int hloc_call(hloc_caller *caller, const char *arguments, const char *results) {
  pthread_mutex_lock(&caller->lock.mutex);
  int error = hloc_match(caller->bases + 1, arguments, results, caller->facts);
  if (!error) error = hloc_execute(caller->bases, caller->host);
  pthread_mutex_unlock(&caller->lock.mutex);
  return error;
}

/* Run with idle results: *results, whose reference is the caller's. Returns 0, or why not. */
static int hloc_call_kept(hloc_caller *caller, const char *arguments, void **results) {
  for (int i = 0; i < caller->count; i++) {
    if (!hloc_are_idle(caller->kept[i], caller->facts)) continue;
    int error = hloc_match(caller->bases + 1, arguments, caller->kept[i], caller->facts);
    if (error) return error;
    *results = caller->kept[i];
    caller->take_reference(*results);                   /* before other threads of Python may go on */
    void *thread = caller->save_thread();
    error = hloc_execute(caller->bases, caller->host);
    caller->restore_thread(thread);
    if (error) caller->drop_reference(*results);
    return error ? HLOC_FAILED - error : 0;
  }
  return HLOC_NOT_IDLE;
}

/* self: an array whose memory is a hloc_caller. */
__attribute__((visibility("default")))
void *hloc_quick(const char *self, const char *arguments) {
  hloc_caller *caller = *(hloc_caller *const *)(self + HLOC_HEADER);
  void *results = NULL;
  int code = HLOC_NOT_IDLE;
  if (pthread_mutex_trylock(&caller->lock.mutex) == 0) {
    code = hloc_call_kept(caller, arguments, &results);
    pthread_mutex_unlock(&caller->lock.mutex);
  }
  if (code == 0) return results;
  void *why = caller->integer(code), *answer = caller->call(caller->otherwise, arguments, why, NULL);
  caller->drop_reference(why);
  return answer;
}
