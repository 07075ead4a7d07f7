/* host.h: runs the plan of a .cubin over the CUDA driver API, without Python and without CUDA's own headers.
 *
 * In (hloc/targets/cuda/host_program.py): HLOC_KERNELS, HLOC_CONSTANTS, HLOC_PARAMETERS, HLOC_RESULTS, HLOC_MAPS, how
 * many; HLOC_DEVICE_BYTES; HLOC_FILE_BYTES, HLOC_IMAGES and HLOC_SEAL, of the .cubin; HLOC_MAJOR, HLOC_MINOR,
 * HLOC_EXACT, the GPU; tables hloc_kernels, hloc_images (in the file), hloc_places (of the arena, parameters, results,
 * constants on the device), hloc_bytes (of parameters, results, constants), hloc_in_file (of constants), hloc_maps; and
 * hloc_plan, which calls hloc_launch, hloc_copy and hloc_read. Out: hloc_start, hloc_run, hloc_stop, hloc_error.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long hloc_address;
typedef struct { int base; long long offset; } hloc_ref;
typedef struct { const char *name; unsigned grid[3], block[3], shared; int image; const char *about; } hloc_kernel;
typedef struct { size_t place, bytes; } hloc_image;
/* What the bulk copy engine must know of an array; place: where on the device the kernel finds it. */
typedef struct {
  long long place;
  hloc_ref array;
  int type;
  uint64_t sizes[4], strides[3];
  uint32_t box[4], steps[4];
} hloc_map;

enum { HLOC_NO_MEMORY = 1, HLOC_NO_GPU, HLOC_NO_FILE, HLOC_GPU_FAILED };
enum { HLOC_STATIC_SHARED = 48 << 10, HLOC_DYNAMIC_SHARED_ATTRIBUTE = 8, HLOC_NON_BLOCKING = 1, HLOC_MAP_BYTES = 128 };
enum { HLOC_NO_DEVICE_MEMORY = 2 }; /* of the driver */

#define HLOC_DRIVER(X)                                                                                                \
  X(cuInit, (unsigned))                                                                                               \
  X(cuGetErrorString, (int, const char **))                                                                           \
  X(cuDeviceGet, (int *, int))                                                                                        \
  X(cuDeviceGetName, (char *, int, int))                                                                              \
  X(cuDeviceComputeCapability, (int *, int *, int))                                                                   \
  X(cuDevicePrimaryCtxRetain, (void **, int))                                                                         \
  X(cuDevicePrimaryCtxRelease_v2, (int))                                                                              \
  X(cuCtxPushCurrent_v2, (void *))                                                                                    \
  X(cuCtxPopCurrent_v2, (void **))                                                                                    \
  X(cuModuleLoadDataEx, (void **, const void *, unsigned, int *, void **))                                            \
  X(cuModuleUnload, (void *))                                                                                         \
  X(cuModuleGetFunction, (void **, void *, const char *))                                                             \
  X(cuFuncSetAttribute, (void *, int, int))                                                                           \
  X(cuMemAlloc_v2, (hloc_address *, size_t))                                                                          \
  X(cuMemFree_v2, (hloc_address))                                                                                     \
  X(cuMemcpyHtoDAsync_v2, (hloc_address, const void *, size_t, void *))                                               \
  X(cuMemcpyDtoHAsync_v2, (void *, hloc_address, size_t, void *))                                                     \
  X(cuMemcpyDtoDAsync_v2, (hloc_address, hloc_address, size_t, void *))                                               \
  X(cuStreamCreate, (void **, unsigned))                                                                              \
  X(cuStreamDestroy_v2, (void *))                                                                                     \
  X(cuStreamSynchronize, (void *))                                                                                    \
  X(cuLaunchKernel,                                                                                                   \
    (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **))
#define HLOC_MAP_FUNCTION "cuTensorMapEncodeTiled"
typedef int (*hloc_encode)(void *, int, uint32_t, void *, const uint64_t *, const uint64_t *, const uint32_t *,
                           const uint32_t *, int, int, int, int);
#define HLOC_MEMBER(name, arguments) int(*name) arguments;
#define HLOC_LOOK_UP(name, arguments) \
  if (!(*(void **)&hloc_driver.name = dlsym(hloc_driver.library, #name))) return hloc_lacks(#name);
#define HLOC_DO(name, ...)                                         \
  do {                                                             \
    const int code = hloc_driver.name(__VA_ARGS__);                \
    if (code) return hloc_fail(#name, code);                       \
  } while (0)

static struct {
  void *library;
  HLOC_DRIVER(HLOC_MEMBER)
  hloc_encode encode;
} hloc_driver;
static struct {
  int device;
  void *context, *stream, *modules[HLOC_IMAGES + 1], *functions[HLOC_KERNELS + 1];
  hloc_address memory;
  const hloc_kernel *at; /* that is starting */
} hloc_gpu;
static pthread_mutex_t hloc_run_lock = PTHREAD_MUTEX_INITIALIZER;
static char hloc_words[400] = "no error";

/* Remember what is wrong; the code is handed on. */
static __attribute__((format(printf, 2, 3))) int hloc_say(int code, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(hloc_words, sizeof hloc_words, format, arguments);
  va_end(arguments);
  return code;
}

static int hloc_lacks(const char *name) {
  return hloc_say(HLOC_NO_GPU, "the NVIDIA driver is too old: it has no %s", name);
}

static int hloc_fail(const char *name, int code) {
  const char *text = NULL;
  if (hloc_driver.cuGetErrorString(code, &text) || !text) text = "unknown error";
  const int kind = code == HLOC_NO_DEVICE_MEMORY ? HLOC_NO_MEMORY : HLOC_GPU_FAILED;
  const hloc_kernel *at = hloc_gpu.at;
  if (at) return hloc_say(kind, "kernel %s: %s failed: %s; it computes %s", at->name, name, text, at->about);
  return hloc_say(kind, "%s failed: %s (error %d)", name, text, code);
}

static hloc_address hloc_at(hloc_ref ref) { return hloc_gpu.memory + hloc_places[ref.base] + ref.offset; }

/* -- what plans are made of -- */

/* maps: the first of the launch's tensor maps, or -1. */
static inline int hloc_launch(int number, const hloc_ref *refs, int count, int maps) {
  const hloc_kernel *kernel = &hloc_kernels[number];
  hloc_address arguments[HLOC_MOST_ARGUMENTS + 1];
  for (int i = 0; i < count; i++) arguments[i] = hloc_at(refs[i]);
  if (maps >= 0) arguments[count++] = hloc_gpu.memory + hloc_maps[maps].place;
  size_t bytes = (size_t)count * sizeof *arguments;
  void *more[] = {(void *)1, arguments, (void *)2, &bytes, NULL}; /* CU_LAUNCH_PARAM_BUFFER_POINTER, _SIZE, _END */
  hloc_gpu.at = kernel;
  HLOC_DO(cuLaunchKernel, hloc_gpu.functions[number], kernel->grid[0], kernel->grid[1], kernel->grid[2],
          kernel->block[0], kernel->block[1], kernel->block[2], kernel->shared, hloc_gpu.stream, NULL, more);
  hloc_gpu.at = NULL;
  return 0;
}

static inline int hloc_copy(hloc_ref to, hloc_ref from, size_t size) {
  HLOC_DO(cuMemcpyDtoDAsync_v2, hloc_at(to), hloc_at(from), size, hloc_gpu.stream);
  return 0;
}

/* Wait, and read a flag of 1 byte or a number of 4. */
static inline int hloc_read(hloc_ref from, size_t size, int32_t *value) {
  *value = 0;
  HLOC_DO(cuMemcpyDtoHAsync_v2, value, hloc_at(from), size, hloc_gpu.stream);
  HLOC_DO(cuStreamSynchronize, hloc_gpu.stream);
  return 0;
}

static int hloc_plan(void);

/* -- loading -- */

static int hloc_find_gpu(void) {
  char name[256];
  int major, minor;
  if (!hloc_driver.library && !(hloc_driver.library = dlopen("libcuda.so.1", RTLD_NOW)))
    return hloc_say(HLOC_NO_GPU, "no NVIDIA driver: %s", dlerror());
  HLOC_DRIVER(HLOC_LOOK_UP)
  if (HLOC_MAPS && !(*(void **)&hloc_driver.encode = dlsym(hloc_driver.library, HLOC_MAP_FUNCTION)))
    return hloc_lacks(HLOC_MAP_FUNCTION);
  int code = hloc_driver.cuInit(0);
  if (!code) code = hloc_driver.cuDeviceGet(&hloc_gpu.device, 0);
  if (code) return hloc_fail("cuInit", code), HLOC_NO_GPU;
  HLOC_DO(cuDeviceGetName, name, sizeof name, hloc_gpu.device);
  HLOC_DO(cuDeviceComputeCapability, &major, &minor, hloc_gpu.device);
  if (major != HLOC_MAJOR || (HLOC_EXACT ? minor != HLOC_MINOR : minor < HLOC_MINOR))
    return hloc_say(HLOC_NO_GPU, "compiled for " HLOC_ARCH "; %s is sm_%d%d", name, major, minor);
  return 0;
}

/* The .cubin that belongs to this file, in memory; NULL, with the words, where it is another or not whole. */
static char *hloc_file(const char *path) {
  FILE *file = fopen(path, "rb");
  char *data = file ? malloc(HLOC_FILE_BYTES + 1) : NULL;
  const size_t bytes = data ? fread(data, 1, HLOC_FILE_BYTES + 1, file) : 0;
  if (!file) hloc_say(HLOC_NO_FILE, "cannot read %.300s", path);
  else if (!data) hloc_say(HLOC_NO_MEMORY, "out of memory for %.300s", path);
  else if (bytes != HLOC_FILE_BYTES || memcmp(data + HLOC_FILE_BYTES - 64, HLOC_SEAL, 64))
    hloc_say(HLOC_NO_FILE, "%.300s is not the .cubin that was compiled together with this program", path);
  else return fclose(file), data;
  if (file) fclose(file);
  return free(data), NULL;
}

static int hloc_encode_map(const hloc_map *map, char *to) {
  void *place = NULL;
  if (posix_memalign(&place, 64, HLOC_MAP_BYTES)) return hloc_say(HLOC_NO_MEMORY, "out of memory");
  const int code = hloc_driver.encode(place, map->type, 4, (void *)(uintptr_t)hloc_at(map->array), map->sizes,
                                      map->strides, map->box, map->steps, 0, 3, 3, 0);
  memcpy(to, place, HLOC_MAP_BYTES);
  free(place);
  return code ? hloc_fail(HLOC_MAP_FUNCTION, code) : 0;
}

/* A module of an image, which is at any place in the file: the driver gets a copy at an aligned one. */
static int hloc_load_image(const char *data, int number) {
  char *image = malloc(hloc_images[number].bytes);
  if (!image) return hloc_say(HLOC_NO_MEMORY, "out of memory");
  memcpy(image, data + hloc_images[number].place, hloc_images[number].bytes);
  const int code = hloc_driver.cuModuleLoadDataEx(&hloc_gpu.modules[number], image, 0, NULL, NULL);
  free(image);
  return code ? hloc_fail("cuModuleLoadDataEx", code) : 0;
}

static int hloc_load(const char *data) {
  static char maps[HLOC_MAPS + 1][HLOC_MAP_BYTES];
  for (int i = 0; i < HLOC_IMAGES; i++) {
    const int code = hloc_load_image(data, i);
    if (code) return code;
  }
  for (int i = 0; i < HLOC_KERNELS; i++) {
    HLOC_DO(cuModuleGetFunction, &hloc_gpu.functions[i], hloc_gpu.modules[hloc_kernels[i].image],
            hloc_kernels[i].name);
    if (hloc_kernels[i].shared > HLOC_STATIC_SHARED)
      HLOC_DO(cuFuncSetAttribute, hloc_gpu.functions[i], HLOC_DYNAMIC_SHARED_ATTRIBUTE, (int)hloc_kernels[i].shared);
  }
  HLOC_DO(cuStreamCreate, &hloc_gpu.stream, HLOC_NON_BLOCKING);
  HLOC_DO(cuMemAlloc_v2, &hloc_gpu.memory, HLOC_DEVICE_BYTES);
  for (int i = 0; i < HLOC_CONSTANTS; i++) {
    const int n = HLOC_PARAMETERS + HLOC_RESULTS + i;
    if (hloc_bytes[n])
      HLOC_DO(cuMemcpyHtoDAsync_v2, hloc_gpu.memory + hloc_places[1 + n], data + hloc_in_file[i], hloc_bytes[n],
              hloc_gpu.stream);
  }
  for (int i = 0; i < HLOC_MAPS; i++) {
    const int code = hloc_encode_map(&hloc_maps[i], maps[i]);
    if (code) return code;
    HLOC_DO(cuMemcpyHtoDAsync_v2, hloc_gpu.memory + hloc_maps[i].place, maps[i], HLOC_MAP_BYTES, hloc_gpu.stream);
  }
  HLOC_DO(cuStreamSynchronize, hloc_gpu.stream);
  return 0;
}

/* Errors are left alone: after a fault the driver gives everything back itself. */
static void hloc_unload(void) {
  if (!hloc_gpu.context) return;
  if (hloc_gpu.memory) hloc_driver.cuMemFree_v2(hloc_gpu.memory);
  if (hloc_gpu.stream) hloc_driver.cuStreamDestroy_v2(hloc_gpu.stream);
  for (int i = 0; i < HLOC_IMAGES; i++)
    if (hloc_gpu.modules[i]) hloc_driver.cuModuleUnload(hloc_gpu.modules[i]);
  hloc_driver.cuCtxPopCurrent_v2(&hloc_gpu.context);
  hloc_driver.cuDevicePrimaryCtxRelease_v2(hloc_gpu.device);
  memset(&hloc_gpu, 0, sizeof hloc_gpu);
}

static int hloc_begin(const char *path) {
  int code = hloc_find_gpu();
  if (code) return code;
  char *data = hloc_file(path);
  if (!data) return HLOC_NO_FILE;
  code = hloc_driver.cuDevicePrimaryCtxRetain(&hloc_gpu.context, hloc_gpu.device);
  if (code) {
    hloc_gpu.context = NULL;
    return free(data), hloc_fail("cuDevicePrimaryCtxRetain", code);
  }
  hloc_driver.cuCtxPushCurrent_v2(hloc_gpu.context);
  code = hloc_load(data);
  if (code) hloc_unload();
  else hloc_driver.cuCtxPopCurrent_v2(&hloc_gpu.context);
  return free(data), code;
}

static int hloc_go(const void *const *inputs, void *const *results) {
  for (int i = 0; i < HLOC_PARAMETERS; i++)
    if (hloc_bytes[i])
      HLOC_DO(cuMemcpyHtoDAsync_v2, hloc_gpu.memory + hloc_places[1 + i], inputs[i], hloc_bytes[i], hloc_gpu.stream);
  const int code = hloc_plan();
  if (code) return code;
  for (int i = 0; i < HLOC_RESULTS; i++) {
    const int n = HLOC_PARAMETERS + i;
    if (hloc_bytes[n])
      HLOC_DO(cuMemcpyDtoHAsync_v2, results[i], hloc_gpu.memory + hloc_places[1 + n], hloc_bytes[n], hloc_gpu.stream);
  }
  HLOC_DO(cuStreamSynchronize, hloc_gpu.stream);
  return 0;
}

/* -- what others call -- */

int hloc_start(const char *path) {
  pthread_mutex_lock(&hloc_run_lock);
  const int code = hloc_gpu.context ? 0 : hloc_begin(path);
  pthread_mutex_unlock(&hloc_run_lock);
  return code;
}

int hloc_run(const void *const *inputs, void *const *results) {
  pthread_mutex_lock(&hloc_run_lock);
  int code = hloc_gpu.context ? 0 : hloc_say(HLOC_NO_FILE, HLOC_NAME "_start has not loaded the program");
  if (!code) {
    hloc_driver.cuCtxPushCurrent_v2(hloc_gpu.context);
    code = hloc_go(inputs, results);
    hloc_gpu.at = NULL;
    hloc_driver.cuCtxPopCurrent_v2(&hloc_gpu.context);
  }
  pthread_mutex_unlock(&hloc_run_lock);
  return code;
}

void hloc_stop(void) {
  pthread_mutex_lock(&hloc_run_lock);
  if (hloc_gpu.context) hloc_driver.cuCtxPushCurrent_v2(hloc_gpu.context);
  hloc_unload();
  pthread_mutex_unlock(&hloc_run_lock);
}

const char *hloc_error(int code) { return code ? hloc_words : "no error"; }
