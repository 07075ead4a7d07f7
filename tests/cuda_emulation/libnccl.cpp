/* libnccl.cpp: a libnccl.so.2 for processes of one machine, whose GPUs libcuda.cpp emulates.
 *
 * Ranks share a file: each has an area for what all exchange, and a box for messages to each other rank. A unique id is
 * the file's path. Work is done when the emulated stream does it (emulated_do). What a rank waits for longer than a minute,
 * and what is larger than an area, is an internal error.
 */
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <dlfcn.h>
#include <fcntl.h>
#include <functional>
#include <sched.h>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>
#include <vector>

enum { SUCCESS, INTERNAL_ERROR = 3, INVALID_ARGUMENT = 4, MOST_RANKS = 8 };
enum { ADD, MULTIPLY, MAXIMUM, MINIMUM };
constexpr size_t AREA = 1 << 20, BOX = 1 << 16;
constexpr int PATIENCE = 60;
typedef struct { char bytes[128]; } Id;
struct Box { std::atomic<int> full; char data[BOX]; };
struct Shared { std::atomic<int> arrived, turn; char areas[MOST_RANKS][AREA]; Box boxes[MOST_RANKS][MOST_RANKS]; };
struct Communicator { Shared *shared; int count, rank; std::string path; };
struct Send { Communicator *to; const char *data; size_t size; int peer; };
struct Receive { Communicator *from; char *data; size_t size; int peer; };
struct Group { std::vector<Send> sends; std::vector<Receive> receives; std::vector<std::function<int()>> others; void *stream; };
#define API(name, ...) extern "C" __attribute__((visibility("default"))) int name(__VA_ARGS__)

static bool until(const std::function<bool()> &met) {
  for (const time_t begun = time(nullptr); !met(); sched_yield())
    if (time(nullptr) - begun > PATIENCE) return false;
  return true;
}
static bool barrier(Communicator *own) {
  Shared *shared = own->shared;
  const int turn = shared->turn;
  if (++shared->arrived == own->count) return shared->arrived = 0, shared->turn++, true;
  return until([=] { return shared->turn != turn; });
}
/* Everybody's bytes, by rank; `use` reads them before anybody writes again. */
static int exchange(Communicator *own, const void *data, size_t size, const std::function<void(char (*)[AREA])> &use) {
  if (size > AREA) return INTERNAL_ERROR;
  memcpy(own->shared->areas[own->rank], data, size);
  if (!barrier(own)) return INTERNAL_ERROR;
  use(own->shared->areas);
  return barrier(own) ? SUCCESS : INTERNAL_ERROR;
}
static Communicator *join(const char *path, int count, int rank) {
  const int file = open(path, O_RDWR);
  void *at = file < 0 ? MAP_FAILED : mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  return at == MAP_FAILED || count > MOST_RANKS ? nullptr : new Communicator{static_cast<Shared *>(at), count, rank, path};
}
static std::string new_file() {
  char path[] = "/tmp/hloc-nccl-XXXXXX";
  const int file = mkstemp(path);
  const bool made = file >= 0 && ftruncate(file, sizeof(Shared)) == 0;
  close(file);
  return made ? path : "";
}

API(ncclGetVersion, int *version) { return *version = 22105, SUCCESS; }
extern "C" __attribute__((visibility("default"))) const char *ncclGetErrorString(int code) {
  return code == INTERNAL_ERROR ? "internal error" : code ? "invalid argument" : "no error";
}
API(ncclGetUniqueId, Id *id) { return snprintf(id->bytes, sizeof id->bytes, "%s", new_file().c_str()), SUCCESS; }
API(ncclCommInitRank, Communicator **made, int count, Id id, int rank) {
  if (rank < 0 || rank >= count || !(*made = join(id.bytes, count, rank))) return INVALID_ARGUMENT;
  return barrier(*made) ? SUCCESS : INTERNAL_ERROR;
}
API(ncclCommSplit, Communicator *own, int color, int key, Communicator **made, void *config) {
  struct Told { int color, key; char path[64]; } told = {color, key, ""};
  if (config) return INVALID_ARGUMENT;
  snprintf(told.path, sizeof told.path, "%s", new_file().c_str());
  std::string path;
  int count = 0, rank = 0;
  const int code = exchange(own, &told, sizeof told, [&](char (*areas)[AREA]) {
    for (int r = 0; r < own->count; r++) {
      const Told *other = (const Told *)areas[r];
      if (other->color != color) continue;
      if (!count++) path = other->path;                 /* the file of the group's first rank */
      rank += std::make_pair(other->key, r) < std::make_pair(key, own->rank);
    }
  });
  *made = code || color < 0 ? nullptr : join(path.c_str(), count, rank);
  if (*made && !barrier(*made)) return INTERNAL_ERROR;
  if (!*made || path != told.path) unlink(told.path);
  return code ? code : color < 0 || *made ? SUCCESS : INVALID_ARGUMENT;
}
API(ncclCommAbort, Communicator *own) {
  unlink(own->path.c_str()), munmap(own->shared, sizeof(Shared));
  return delete own, SUCCESS;
}
API(ncclCommGetAsyncError, Communicator *, int *code) { return *code = SUCCESS, SUCCESS; }

/* -- groups: what is called between start and end is one piece of work -- */
static thread_local Group *group;
static int run(Group &work) {
  for (const auto &other : work.others)
    if (const int code = other()) return code;
  for (const Send &send : work.sends) {
    Box &box = send.to->shared->boxes[send.to->rank][send.peer];
    if (send.size > BOX || !until([&] { return !box.full.load(); })) return INTERNAL_ERROR;
    memcpy(box.data, send.data, send.size), box.full = int(send.size) + 1;
  }
  for (const Receive &receive : work.receives) {
    Box &box = receive.from->shared->boxes[receive.peer][receive.from->rank];
    if (!until([&] { return box.full.load() != 0; }) || box.full != int(receive.size) + 1) return INTERNAL_ERROR;
    memcpy(receive.data, box.data, receive.size), box.full = 0;
  }
  return SUCCESS;
}
static int put(void *stream, const std::function<void(Group &)> &add) {
  if (!group) return INVALID_ARGUMENT;                  /* hloc groups all */
  return group->stream = stream, add(*group), SUCCESS;
}
API(ncclGroupStart) { return group ? INVALID_ARGUMENT : (group = new Group{}, SUCCESS); }
API(ncclGroupEnd) {
  static const auto run_on = (int (*)(void *, int (*)(void *), void *))dlsym(RTLD_DEFAULT, "emulated_do");
  Group *own = std::exchange(group, nullptr);           /* stays: a graph may run it again */
  return run_on(own->stream, [](void *work) { return run(*static_cast<Group *>(work)); }, own);
}
API(ncclSend, const void *from, size_t count, int type, int peer, Communicator *own, void *stream) {
  if (type > 1) return INVALID_ARGUMENT;
  return put(stream, [=](Group &work) { work.sends.push_back({own, (const char *)from, count, peer}); });
}
API(ncclRecv, void *to, size_t count, int type, int peer, Communicator *own, void *stream) {
  if (type > 1) return INVALID_ARGUMENT;
  return put(stream, [=](Group &work) { work.receives.push_back({own, (char *)to, count, peer}); });
}

/* -- collectives -- */
template <typename T> static void combine(T *to, const T *from, size_t count, int op) {
  for (size_t i = 0; i < count; i++)
    to[i] = op == ADD ? to[i] + from[i] : op == MULTIPLY ? to[i] * from[i] : (op == MAXIMUM) == (from[i] > to[i]) ? from[i] : to[i];
}
static int combined(Communicator *own, const void *from, void *to, size_t count, size_t first, size_t wanted, int type, int op) {
  static const size_t SIZES[] = {1, 1, 4, 4, 8, 8, 2, 4, 8};
  if (type > 8 || type == 6) return INVALID_ARGUMENT;   /* no f16, no bf16 here */
  const size_t size = SIZES[type];
  return exchange(own, from, count * size, [=](char (*areas)[AREA]) {
    std::vector<char> total(areas[0], areas[0] + count * size);
    for (int r = 1; r < own->count; r++) {
      char *a = total.data(), *b = areas[r];
      type == 0 ? combine((int8_t *)a, (int8_t *)b, count, op) : type == 1 ? combine((uint8_t *)a, (uint8_t *)b, count, op)
      : type == 2 ? combine((int32_t *)a, (int32_t *)b, count, op) : type == 3 ? combine((uint32_t *)a, (uint32_t *)b, count, op)
      : type == 4 ? combine((int64_t *)a, (int64_t *)b, count, op) : type == 5 ? combine((uint64_t *)a, (uint64_t *)b, count, op)
      : type == 7 ? combine((float *)a, (float *)b, count, op) : combine((double *)a, (double *)b, count, op);
    }
    memcpy(to, &total[first * size], wanted * size);
  });
}
API(ncclAllReduce, const void *from, void *to, size_t count, int type, int op, Communicator *own, void *stream) {
  return put(stream, [=](Group &work) { work.others.push_back([=] { return combined(own, from, to, count, 0, count, type, op); }); });
}
API(ncclReduceScatter, const void *from, void *to, size_t count, int type, int op, Communicator *own, void *stream) {
  return put(stream, [=](Group &work) {
    work.others.push_back([=] { return combined(own, from, to, count * own->count, count * own->rank, count, type, op); });
  });
}
API(ncclAllGather, const void *from, void *to, size_t count, int type, Communicator *own, void *stream) {
  if (type > 1) return INVALID_ARGUMENT;
  return put(stream, [=](Group &work) {
    work.others.push_back([=] {
      return exchange(own, from, count, [=](char (*areas)[AREA]) {
        for (int r = 0; r < own->count; r++) memcpy((char *)to + r * count, areas[r], count);
      });
    });
  });
}
API(ncclBroadcast, const void *from, void *to, size_t count, int type, int root, Communicator *own, void *stream) {
  if (type > 1) return INVALID_ARGUMENT;
  return put(stream, [=](Group &work) {
    work.others.push_back([=] { return exchange(own, from, count, [=](char (*areas)[AREA]) { memcpy(to, areas[root], count); }); });
  });
}
