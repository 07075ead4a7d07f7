/* libcuda.cpp: a libcuda.so.1 whose GPU is the CPU, for PyCUDA as it is installed.
 *
 * An image is a shared object that driver.py builds from hloc's CUDA C: cuLaunchKernel calls its launch_<kernel>. Memory
 * is real memory, poisoned (0xff), bounded by guard bytes that every wait looks at; copies beyond an allocation are
 * refused. A stream records while it is captured, and so does one that waits for an event of it; else it does things at
 * once. stubs.cpp, written by with_pycuda.py, holds the driver's other functions: not supported.
 *
 * From the environment:
 *   EMULATED_FAIL    "cuInit=100 cuLaunchKernel=700@3": cuInit gives 100, the third launch 700 (without @N: each). Codes of
 *                    faults on the device (700, 702 to 719) are given by every call from then on
 *   EMULATED_MEMORY  bytes (1 GiB), EMULATED_DEVICES (1), EMULATED_CAPABILITY (90), EMULATED_DRIVER (13000)
 *   EMULATED_REPORT  a file: what was left at exit, as "memory 0 host 0 modules 0 streams 0 graphs 0 contexts 0"
 */
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <elf.h>
#include <functional>
#include <map>
#include <string>
#include <unistd.h>
#include <vector>

#include "tensor_map.h"

enum { SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, NO_DEVICE = 100, INVALID_IMAGE = 200, INVALID_CONTEXT, NOT_FOUND = 500,
       ILLEGAL_ADDRESS = 700, LAUNCH_FAILED = 719, CAPTURING = 900, ISOLATION = 906 };
constexpr size_t GUARD = 4096;
constexpr int OPT_IN_SHARED = 227 << 10;
typedef uint64_t Pointer;
typedef std::function<int()> Work;
struct Piece { std::vector<unsigned char> bytes; size_t start, size; };
/* origin: of the capture; kernel: whether a kernel was recorded last; early: what is recorded next is one that starts early */
struct Stream { Stream *origin = nullptr; std::vector<Work> recorded; std::vector<Stream *> joined; bool kernel = false, early = false; };
struct Graph { std::vector<Work> nodes; };
struct Event { double when = 0; Stream *origin = nullptr; };
struct Module { void *library; };
struct Function { int (*launch)(void *const *, const unsigned *, const unsigned *, unsigned); int most_threads, takes, most_shared = 48 << 10; };

static std::map<Pointer, Piece> memory;
static std::map<void *, size_t> host;
static std::vector<int> current;                      /* the context stack: there is one context */
static int modules, streams, graphs, retained, sticky;
static std::map<std::string, int> calls;

static long setting(const char *name, long otherwise) {
  const char *given = getenv(name);
  return given ? atol(given) : otherwise;
}

/* What this call of a function has to answer, before anything else: a fault that was asked for, or that has happened. */
static int fault(const char *name) {
  const int number = ++calls[name];
  const char *given = getenv("EMULATED_FAIL");
  const std::string wanted = std::string(name) + "=";
  for (const char *at = given; at && *at; at = strchr(at, ' ') ? strchr(at, ' ') + 1 : nullptr) {
    int code = 0, when = 0;
    if (strncmp(at, wanted.c_str(), wanted.size())) continue;
    const int found = sscanf(at + wanted.size(), "%d@%d", &code, &when);
    if (found == 1 || (found == 2 && when == number)) {
      if (code == ILLEGAL_ADDRESS || (code > 701 && code < 720)) sticky = code;
      return code;
    }
  }
  return sticky;
}
#define API(name, ...) extern "C" __attribute__((visibility("default"))) int name(__VA_ARGS__)
#define FAULT                                                                                                         \
  if (const int code = fault(__func__)) return code

static int do_or_record(void *stream, Work work, bool kernel = false) {
  Stream *own = static_cast<Stream *>(stream);
  if (!own || !own->origin) return work();
  if (own->early && !kernel) return INVALID_VALUE;
  own->kernel = kernel, own->early = false;
  own->origin->recorded.push_back(work);
  return SUCCESS;
}
/* For libnccl.cpp: work for a stream. */
extern "C" __attribute__((visibility("default"))) int emulated_do(void *stream, int (*work)(void *), void *data) {
  return do_or_record(stream, [=] { return work(data); });
}
static Piece *piece_of(Pointer at, size_t size) {
  auto found = memory.upper_bound(at);
  if (found == memory.begin()) return nullptr;
  --found;
  return at + size <= found->first + found->second.size ? &found->second : nullptr;
}
static int copy(Pointer to, Pointer from, size_t size, bool to_device, bool from_device) {
  if ((to_device && !piece_of(to, size)) || (from_device && !piece_of(from, size))) return INVALID_VALUE;
  memmove((void *)to, (const void *)from, size);
  return SUCCESS;
}
static int check_guards() {
  for (auto &[_, piece] : memory)
    for (size_t i = 0; i < piece.bytes.size(); i++)
      if ((i < piece.start || i >= piece.start + piece.size) && piece.bytes[i] != 0xA5) return sticky = ILLEGAL_ADDRESS;
  return SUCCESS;
}

/* -- the driver, devices, contexts -- */
API(cuInit, unsigned flags) {
  FAULT;
  return setting("EMULATED_DEVICES", 1) ? SUCCESS : NO_DEVICE;
}
API(cuDriverGetVersion, int *version) {
  FAULT;
  return *version = setting("EMULATED_DRIVER", 13000), SUCCESS;
}
API(cuGetErrorString, int code, const char **text) {
  static const std::map<int, const char *> words = {
      {1, "invalid argument"}, {2, "out of memory"}, {100, "no CUDA-capable device is detected"},
      {200, "device kernel image is invalid"}, {201, "invalid device context"}, {222, "the provided PTX was compiled with an unsupported toolchain."},
      {500, "named symbol not found"}, {700, "an illegal memory access was encountered"}, {701, "too many resources requested for launch"},
      {719, "unspecified launch failure"}, {801, "operation not supported"}, {803, "system has unsupported display driver / cuda driver combination"},
      {900, "operation not permitted when stream is capturing"}};
  const auto found = words.find(code);
  return *text = found == words.end() ? "an error that the emulation has no words for" : found->second, SUCCESS;
}
API(cuDeviceGetCount, int *count) {
  FAULT;
  return *count = setting("EMULATED_DEVICES", 1), SUCCESS;
}
API(cuDeviceGet, int *device, int number) {
  FAULT;
  return *device = number, number < setting("EMULATED_DEVICES", 1) ? SUCCESS : 101;
}
API(cuDeviceGetPCIBusId, char *name, int size, int device) {
  FAULT;
  return snprintf(name, size, "0000:%02x:00.0", device), SUCCESS;
}
API(cuDeviceGetName, char *name, int size, int) {
  FAULT;
  return snprintf(name, size, "the emulation"), SUCCESS;
}
API(cuDeviceComputeCapability, int *major, int *minor, int) {
  FAULT;
  *major = setting("EMULATED_CAPABILITY", 90) / 10, *minor = setting("EMULATED_CAPABILITY", 90) % 10;
  return SUCCESS;
}
API(cuDeviceGetAttribute, int *value, int attribute, int) {
  FAULT;
  static const std::map<int, int> known = {{1, 1024}, {8, 48 << 10}, {10, 32}, {12, 65536}, {16, 4}, {36, 0}, {37, 5120},
                                           {38, 50 << 20}, {39, 2048}, {41, 1}, {97, OPT_IN_SHARED}};
  if (attribute > 140) return INVALID_VALUE;          /* newer than this driver */
  return *value = known.count(attribute) ? known.at(attribute) : 0, SUCCESS;
}
API(cuDevicePrimaryCtxRetain, void **context, int) {
  FAULT;
  return retained++, *context = &retained, SUCCESS;
}
API(cuDevicePrimaryCtxRelease_v2, int device) {
  FAULT;
  return retained > 0 ? (retained--, SUCCESS) : INVALID_CONTEXT;
}
API(cuCtxPushCurrent_v2, void *) { return current.push_back(1), SUCCESS; }
API(cuCtxPopCurrent_v2, void **context) {
  if (current.empty()) return INVALID_CONTEXT;
  current.pop_back();
  return *context = &retained, SUCCESS;
}
API(cuCtxGetDevice, int *device) {
  FAULT;
  return *device = 0, current.empty() ? INVALID_CONTEXT : SUCCESS;
}
API(cuCtxSynchronize) {
  FAULT;
  return check_guards();
}

/* -- memory -- */
static size_t used() {
  size_t sum = 0;
  for (auto &[_, piece] : memory) sum += piece.size;
  return sum;
}
API(cuMemGetInfo_v2, size_t *free, size_t *total) {
  FAULT;
  *total = setting("EMULATED_MEMORY", 1l << 30), *free = *total - used();
  return SUCCESS;
}
API(cuMemAlloc_v2, Pointer *at, size_t size) {
  FAULT;
  if (current.empty()) return INVALID_CONTEXT;
  if (size == 0) return INVALID_VALUE;
  if (used() + size > size_t(setting("EMULATED_MEMORY", 1l << 30))) return OUT_OF_MEMORY;
  Piece piece{std::vector<unsigned char>(size + 2 * GUARD + 256, 0xA5), 0, size};
  const Pointer base = Pointer(piece.bytes.data());
  piece.start = (base + GUARD + 255) / 256 * 256 - base;
  memset(&piece.bytes[piece.start], 0xFF, size);
  *at = base + piece.start;
  return memory[*at] = std::move(piece), SUCCESS;
}
API(cuMemFree_v2, Pointer at) {
  FAULT;
  return memory.erase(at) ? SUCCESS : INVALID_VALUE;
}
API(cuMemHostAlloc, void **at, size_t size, unsigned) {
  FAULT;
  if (current.empty()) return INVALID_CONTEXT;
  return *at = aligned_alloc(4096, (size + 4095) / 4096 * 4096), host[*at] = size, SUCCESS;
}
API(cuMemFreeHost, void *at) {
  FAULT;
  return host.erase(at) ? (free(at), SUCCESS) : INVALID_VALUE;
}
API(cuMemcpyHtoD_v2, Pointer to, const void *from, size_t size) {
  FAULT;
  return copy(to, Pointer(from), size, true, false);
}
API(cuMemcpyHtoDAsync_v2, Pointer to, const void *from, size_t size, void *stream) {
  FAULT;
  return do_or_record(stream, [=] { return copy(to, Pointer(from), size, true, false); });
}
API(cuMemcpyDtoHAsync_v2, void *to, Pointer from, size_t size, void *stream) {
  FAULT;
  return do_or_record(stream, [=] { return copy(Pointer(to), from, size, false, true); });
}
API(cuMemcpyDtoDAsync_v2, Pointer to, Pointer from, size_t size, void *stream) {
  FAULT;
  return do_or_record(stream, [=] { return copy(to, from, size, true, true); });
}
API(cuMemsetD8_v2, Pointer to, unsigned char value, size_t size) {
  FAULT;
  return piece_of(to, size) ? (memset((void *)to, value, size), SUCCESS) : INVALID_VALUE;
}
API(cuMemsetD8Async, Pointer to, unsigned char value, size_t size, void *stream) {
  FAULT;
  if (!piece_of(to, size)) return INVALID_VALUE;
  return do_or_record(stream, [=] { return memset((void *)to, value, size), SUCCESS; });
}
API(cuMemsetD32Async, Pointer to, unsigned value, size_t count, void *stream) {
  FAULT;
  if (!piece_of(to, 4 * count) || to % 4) return INVALID_VALUE;
  return do_or_record(stream, [=] {
    for (size_t i = 0; i < count; i++) ((unsigned *)to)[i] = value;
    return SUCCESS;
  });
}

/* -- streams, events, graphs -- */
API(cuStreamCreate, void **stream, unsigned) {
  FAULT;
  return current.empty() ? INVALID_CONTEXT : (streams++, *stream = new Stream, SUCCESS);
}
API(cuStreamDestroy_v2, void *stream) {
  FAULT;
  return streams--, delete static_cast<Stream *>(stream), SUCCESS;
}
API(cuStreamSynchronize, void *stream) {
  FAULT;
  return static_cast<Stream *>(stream)->origin ? CAPTURING : check_guards();
}
API(cuStreamQuery, void *stream) {
  FAULT;
  return static_cast<Stream *>(stream)->origin ? CAPTURING : check_guards();
}
API(cuStreamWaitEvent, void *stream, void *event, unsigned flags) {
  FAULT;
  Stream *own = static_cast<Stream *>(stream), *origin = static_cast<Event *>(event)->origin;
  if (!origin) return own->origin ? ISOLATION : SUCCESS;              /* without a capture all has been done */
  if (!origin->origin || (own->origin && own->origin != origin)) return ISOLATION;
  if (!own->origin) own->origin = origin, origin->joined.push_back(own);
  return SUCCESS;
}
API(cuEventCreate, void **event, unsigned) {
  FAULT;
  return *event = new Event, SUCCESS;
}
API(cuEventDestroy_v2, void *event) {
  FAULT;
  return delete static_cast<Event *>(event), SUCCESS;
}
API(cuEventQuery, void *event) {
  FAULT;
  return SUCCESS;
}
API(cuEventRecord, void *event, void *stream) {
  FAULT;
  static_cast<Event *>(event)->origin = stream ? static_cast<Stream *>(stream)->origin : nullptr;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<Event *>(event)->when = std::chrono::duration<double, std::milli>(now).count(), SUCCESS;
}
API(cuEventSynchronize, void *event) {
  FAULT;
  return check_guards();
}
API(cuEventElapsedTime_v2, float *ms, void *before, void *after) {
  FAULT;
  return *ms = float(static_cast<Event *>(after)->when - static_cast<Event *>(before)->when), SUCCESS;
}
API(cuStreamBeginCapture_v2, void *stream, int mode) {
  FAULT;
  Stream *own = static_cast<Stream *>(stream);
  return own->origin ? CAPTURING : (own->origin = own, own->kernel = false, own->recorded.clear(), SUCCESS);
}
API(cuStreamGetCaptureInfo_v3, void *stream, int *status, uint64_t *, void **, void *const **nodes, const unsigned char **edges, size_t *count) {
  FAULT;
  static void *const last = &current;                   /* the node has no name here */
  Stream *own = static_cast<Stream *>(stream);
  *status = own->origin != nullptr, *nodes = &last, *edges = nullptr, *count = own->origin && !own->origin->recorded.empty();
  return SUCCESS;
}
API(cuStreamUpdateCaptureDependencies_v2, void *stream, void **nodes, const unsigned char *edge, size_t count, unsigned flags) {
  FAULT;
  static const unsigned char programmatic[8] = {1, 0, 1};
  Stream *own = static_cast<Stream *>(stream);
  if (!own->origin || !own->kernel || count != 1 || flags != 1 || memcmp(edge, programmatic, 8)) return INVALID_VALUE;
  return own->early = true, SUCCESS;
}
API(cuStreamEndCapture, void *stream, void **graph) {
  FAULT;
  Stream *own = static_cast<Stream *>(stream);
  if (own->origin != own) return INVALID_VALUE;
  for (Stream *joined : own->joined) joined->origin = nullptr;
  own->joined.clear(), own->origin = nullptr;
  return graphs++, *graph = new Graph{own->recorded}, SUCCESS;
}
API(cuGraphInstantiateWithFlags, void **instance, void *graph, uint64_t flags) {
  FAULT;
  return flags ? INVALID_VALUE : (graphs++, *instance = new Graph(*static_cast<Graph *>(graph)), SUCCESS);
}
API(cuGraphDestroy, void *graph) {
  FAULT;
  return graphs--, delete static_cast<Graph *>(graph), SUCCESS;
}
API(cuGraphExecDestroy, void *graph) {
  FAULT;
  return graphs--, delete static_cast<Graph *>(graph), SUCCESS;
}
API(cuGraphLaunch, void *graph, void *stream) {
  FAULT;
  for (const Work &work : static_cast<Graph *>(graph)->nodes)
    if (const int code = work()) return code;
  return SUCCESS;
}

/* -- tensor maps: only the form that hloc asks for -- */
API(cuTensorMapEncodeTiled, void *to, int type, uint32_t rank, void *address, const uint64_t *sizes, const uint64_t *strides,
    const uint32_t *box, const uint32_t *steps, int interleave, int swizzle, int promotion, int fill) {
  FAULT;
  const unsigned width = 1u << type;
  if (type > 2 || rank != 4 || interleave || swizzle != 3 || promotion != 3 || fill) return INVALID_VALUE;
  if (Pointer(to) % 64 || Pointer(address) % 16 || box[0] * width > 128) return INVALID_VALUE;
  EmulatedMap map = {EMULATED_MAP, Pointer(address), width, unsigned(swizzle)};
  for (int i = 0; i < 4; i++) {
    if (!sizes[i] || sizes[i] > 1ul << 32 || !box[i] || box[i] > 256 || !steps[i] || steps[i] > (i ? 8 : 1)) return INVALID_VALUE;
    if (i < 3 && (strides[i] % 16 || strides[i] >= 1ul << 40)) return INVALID_VALUE;
    map.sizes[i] = sizes[i], map.box[i] = box[i], map.steps[i] = steps[i];
    if (i < 3) map.strides[i] = strides[i];
  }
  return memcpy(to, &map, sizeof map), SUCCESS;
}

/* -- modules and kernels -- */
API(cuModuleLoadDataEx, void **module, const void *image, unsigned count, int *options, void **values) {
  for (unsigned i = 0; i < count; i++)
    if (options[i] == 4 || options[i] == 6) values[i] = nullptr;     /* sizes of the logs, which stay empty */
  FAULT;
  const Elf64_Ehdr *head = static_cast<const Elf64_Ehdr *>(image);
  if (memcmp(head->e_ident, ELFMAG, SELFMAG) || head->e_type != ET_DYN) return INVALID_IMAGE;
  char path[] = "/tmp/hloc-image-XXXXXX";               /* a name of its own: dlopen knows libraries by their names */
  const int file = mkstemp(path);
  const size_t size = head->e_shoff + size_t(head->e_shnum) * head->e_shentsize;
  const bool written = write(file, image, size) == ssize_t(size);
  void *library = written ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  close(file), unlink(path);
  return library ? (modules++, *module = new Module{library}, SUCCESS) : INVALID_IMAGE;
}
API(cuModuleUnload, void *module) {
  FAULT;
  return modules--, delete static_cast<Module *>(module), SUCCESS;
}
API(cuModuleGetFunction, void **function, void *module, const char *name) {
  FAULT;
  void *library = static_cast<Module *>(module)->library, *launch = dlsym(library, (std::string("launch_") + name).c_str());
  const auto number = [&](const char *of) { return static_cast<int *>(dlsym(library, (std::string(of) + name).c_str())); };
  const int *bounds = number("bounds_"), *takes = number("arguments_");
  if (!launch || !takes) return NOT_FOUND;
  return *function = new Function{(decltype(Function::launch))launch, bounds ? *bounds : 1024, *takes}, SUCCESS;
}
API(cuFuncSetAttribute, void *function, int attribute, int value) {
  FAULT;
  if (attribute != 8 || value > OPT_IN_SHARED) return INVALID_VALUE;
  return static_cast<Function *>(function)->most_shared = value, SUCCESS;
}
API(cuFuncSetBlockShape, void *, int, int, int) {              /* PyCUDA calls it, cuLaunchKernel is told again */
  FAULT;
  return SUCCESS;
}
API(cuLaunchKernel, void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
    void *stream, void **arguments, void **more) {
  FAULT;
  const Function kernel = *static_cast<Function *>(function);
  if (!gx || !gy || !gz || gy > 65535 || gz > 65535 || bx * by * bz > 1024 || int(shared) > kernel.most_shared) return INVALID_VALUE;
  if (int(bx * by * bz) > kernel.most_threads) return 701;
  std::vector<void *> pointers;                        /* the arguments lie in one buffer: all of hloc's are pointers */
  void *const *buffer = nullptr;
  size_t bytes = 0;
  for (int i = 0; more && more[i]; i += 2)
    (Pointer(more[i]) == 1 ? (void)(buffer = static_cast<void *const *>(more[i + 1])) : (void)(bytes = *static_cast<size_t *>(more[i + 1])));
  if (int(bytes / sizeof(void *)) != kernel.takes) return 701;
  pointers.assign(buffer, buffer + bytes / sizeof(void *));
  return do_or_record(stream, [=] {
    const unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
    return kernel.launch(pointers.data(), grid, block, shared) ? sticky = LAUNCH_FAILED : int(SUCCESS);
  }, true);
}

static struct AtExit {
  ~AtExit() {
    const char *path = getenv("EMULATED_REPORT");
    FILE *file = path ? fopen(path, "w") : nullptr;
    if (!file) return;
    fprintf(file, "memory %zu host %zu modules %d streams %d graphs %d contexts %d\n", memory.size(), host.size(), modules,
            streams, graphs, retained);
    fclose(file);
  }
} at_exit;
